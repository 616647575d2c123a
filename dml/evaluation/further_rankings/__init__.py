"""Rankings that a test evaluates beside the plain one of all embeddings."""
