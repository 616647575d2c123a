from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dml.data.pngs import cache_folder, members, png_archive
from dml.data.table import ImageTable
from dml.ops.errors import InputError
from dml.ops.paths import expand_home


def read(root: str | Path | None = None, *, test_fraction: float = 0.25, seed: int = 0) -> ImageTable:
    """Handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak, 1998), which come with scikit-learn: 1,797 images.

    Args:
        root: the folder for the zip file of their PNG files; None is the user's cache.
        test_fraction: of each class's images that are for testing: the ten classes are in both splits.
        seed: of that draw.

    Raises:
        InputError: if the fraction isn't one, or the zip file can't be written.
    """
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    archive = png_archive(images, "digits", [expand_home(root) if root else cache_folder()])
    try:
        _, test = train_test_split(
            np.arange(len(images)), test_size=test_fraction, random_state=seed, stratify=digits.target
        )
    except ValueError as error:
        raise InputError(f"dataset.reader.test_fraction={test_fraction}: between 0 and 1, an image a class") from error
    return ImageTable(
        paths=np.array(members(archive, len(images))),
        labels=digits.target.astype(np.int64)[:, None],
        split=np.where(np.isin(np.arange(len(images)), test), "test", "train"),
        levels=("digit",),
        names=(tuple(map(str, digits.target_names)),),
        source="scikit-learn's load_digits",
    )
