"""Backbones, embedding heads, and models that combine them.

The functions `small_cnn`, `googlenet` and `bn_inception` have the names of modules, so they aren't offered here: import
them from `dml.models.small_cnn` and `dml.models.networks`.
"""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
