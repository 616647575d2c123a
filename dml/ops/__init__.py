"""Tensor functions and errors, which every room uses; packages for files, processes, text and configurations."""
