"""Losses of embeddings and labels; each file holds one loss."""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
