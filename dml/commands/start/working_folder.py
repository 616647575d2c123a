"""The folder in which a command was started, where a user keeps classes of their own."""

import sys
from pathlib import Path


def import_from_working_folder() -> None:
    """Let ``_target_`` name modules in the working folder, behind all others, however the command was started.

    ``python -m dml`` alone finds them by itself. Like there, ``python -P`` and PYTHONSAFEPATH=1 turn it off.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.append(folder)
