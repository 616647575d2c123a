"""Tensor functions that every room uses."""
