"""Deep metric learning: train, test and use networks for image retrieval."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
