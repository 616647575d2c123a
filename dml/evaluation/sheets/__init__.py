"""The pictures of a test."""
