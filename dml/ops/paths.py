import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package."""

IS_INSTALLED = (PACKAGE / "conf").is_dir()
"""Whether the package was built into a wheel, which holds its configurations (setup.py)."""


def expand_home(path: str | Path) -> Path:
    """Return a path that a user gave with ``~`` or ``~name`` replaced by the home folder.

    A shell does so where the path is a word of its own, but not in ``dataset.root=~/images``.
    """
    return Path(os.path.expanduser(path))
