"""Finished runs compared: by their seeds, by their test classes, and query by query."""
