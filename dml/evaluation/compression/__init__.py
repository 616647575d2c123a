"""What smaller vectors cost: recall, bytes and speed of prefixes, projections and FAISS's quantisers."""
