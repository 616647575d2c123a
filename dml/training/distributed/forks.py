import os
import sys
from functools import cache, partial
from time import sleep

PAUSE = 0.02
"""Seconds before a fork; a thread of gloo is done in less than one thousandth."""


@cache
def pause_before_forks() -> None:
    """Pause before each fork of this process from now on, until the threads of gloo have done what they had to.

    After an exchange, a thread of gloo frees tensors, for which it registers with Python for a moment. Before 3.12,
    Python copies the lock of that register in a fork as it is. If a thread held it, the copy waits for it for ever: the
    worker of a data loader never began, and with it one run of ten hung. The thread that forks exchanges nothing
    meanwhile, so after a pause no other thread has a reason to register.
    """
    if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(sleep, PAUSE))
