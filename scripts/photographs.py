"""JPEG files to read, decode and train on where a script needs photographs, whatever they show."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

WIDTH, HEIGHT = 500, 375


def write_photographs(paths: Sequence[Path]) -> None:
    """Write JPEGs of 500 x 375 pixels and quality 90, cut at random from two photographs; folders are created."""
    rng = np.random.default_rng(0)
    photographs = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        width = int(rng.integers(400, 560))
        height = width * HEIGHT // WIDTH
        left, top = int(rng.integers(640 - width)), int(rng.integers(427 - height))
        part = photographs[rng.integers(2)].crop((left, top, left + width, top + height))
        part.resize((WIDTH, HEIGHT)).save(path, quality=90)
