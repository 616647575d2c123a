"""Training and evaluation on several processes."""
