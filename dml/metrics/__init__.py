"""Retrieval, clustering and verification metrics, as functions of rankings, of clusters and of pairs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
