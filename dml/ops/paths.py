import os
from pathlib import Path


def expand_home(path: str | Path) -> Path:
    """Return a path that a user gave with ``~`` or ``~name`` replaced by the home folder.

    A shell does so where the path is a word of its own, but not in ``dataset.root=~/images``.
    """
    return Path(os.path.expanduser(path))
