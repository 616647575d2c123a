"""Exact nearest neighbors, by FAISS or by torch on a CUDA device, and FAISS's k-means and indexes."""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
