"""A trained model in use: load it, embed images with it, search them, and save it for others."""

from dml.runtime.imports import read_stub

__getattr__, __dir__, __all__ = read_stub(__name__, __file__)
