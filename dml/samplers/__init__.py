"""Batch samplers, which choose the rows of each batch by their labels or embeddings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
