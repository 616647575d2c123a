"""Checkpoints: what is written, what is read, and what they leave out."""
