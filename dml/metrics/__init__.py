"""Retrieval, clustering and verification metrics, as functions of rankings, of clusters and of pairs."""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
