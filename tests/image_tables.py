"""Tables of images that don't exist, for tests of what is computed from labels and splits."""

from typing import Any

import numpy as np

from dml.data.table import ImageTable


def make_table(labels: Any, split: Any = "test", paths: Any = None, **columns: Any) -> ImageTable:
    """Make the table of images 0.jpg, 1.jpg... with labels (N,) or (N, L), in one split or in those of a list (N,)."""
    numbers = np.array(labels, dtype=np.int64)
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    depth, names = numbers.shape[1], [f"{row}.jpg" for row in range(len(numbers))]
    given: dict[str, Any] = {
        "paths": np.array(names if paths is None else paths, dtype=np.str_),
        "labels": numbers,
        "split": np.array(np.broadcast_to(split, len(numbers)), dtype=np.str_),
        "levels": ("class",) if depth == 1 else tuple(f"level{level}" for level in range(depth)),
    }
    return ImageTable(**given | columns)
