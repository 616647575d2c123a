"""Deep metric learning: train, test and use networks for image retrieval."""

import os
import sys

import lazy_loader

__version__ = "0.2.0"

try:
    os.getcwd()
except OSError:  # torch's libraries would end the process with a message of their own when they are imported
    sys.stderr.write("error: the working folder was deleted; change to one that exists\n")
    sys.exit(2)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
