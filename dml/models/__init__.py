"""Backbones, embedding heads, and models that combine them.

The function `small_cnn` has the name of a module, so it isn't offered here: import it from `dml.models.small_cnn`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
