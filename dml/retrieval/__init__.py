"""Exact nearest neighbors, by FAISS or by torch on a CUDA device, and FAISS's k-means and indexes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
