"""A trained model in use: load it, embed images with it, search them, and save it for others."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
