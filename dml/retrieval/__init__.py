"""Exact nearest neighbours and k-means, by FAISS on CPU or by torch on a CUDA device."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
