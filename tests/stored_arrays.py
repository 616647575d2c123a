"""Arrays of an .npz file, for the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def stored_arrays(path: Path | str) -> dict[str, np.ndarray]:
    """All arrays of the file, which is closed again (numpy keeps it open for as long as its own result lives)."""
    with np.load(path) as stored:
        return dict(stored)
