"""The default training with one part changed at a time."""
