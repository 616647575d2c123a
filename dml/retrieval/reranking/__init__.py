"""Steps that change a ranking after the embeddings are there: query expansion, augmentation, k-reciprocal encoding."""
