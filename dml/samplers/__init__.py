"""Batch samplers, which choose the rows of each batch by their labels or embeddings."""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
