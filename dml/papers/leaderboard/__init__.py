"""Every loss compared after the same search."""
