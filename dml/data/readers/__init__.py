"""Readers: one function for each data set, which lists its images in a table."""
