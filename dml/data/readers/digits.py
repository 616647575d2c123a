"""The reader of the handwritten digits that come with scikit-learn."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dml.data.image_files.pngs import store_as_pngs, user_cache_folder
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home


def read(root: str | Path | None = None, *, test_fraction: float = 0.25, seed: int = 0) -> ImageTable:
    """Read 1,797 handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak, 1998), which come with scikit-learn.

    Training and test have the same ten classes.

    Args:
        root: folder for a zip file of the images as PNG files; None is the user's cache folder.
        test_fraction: fraction of each class's images that is drawn for testing.
        seed: seed of the draw.

    Raises:
        InputError: if the fraction isn't between 0 and 1 or leaves a class without images, or the zip file can't be
            written.
    """
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    paths = store_as_pngs(images, "digits", [expand_home(root) if root else user_cache_folder()])
    try:
        _, test = train_test_split(
            np.arange(len(images)), test_size=test_fraction, random_state=seed, stratify=digits.target
        )
    except ValueError as error:
        raise InputError(
            f"dataset.reader.test_fraction={test_fraction}: expected a number between 0 and 1 that leaves each class "
            "an image for training and one for testing"
        ) from error
    return ImageTable(
        paths=np.array(paths),
        labels=digits.target.astype(np.int64)[:, None],
        split=np.where(np.isin(np.arange(len(images)), test), "test", "train"),
        levels=("digit",),
        names=(tuple(map(str, digits.target_names)),),
        source="scikit-learn's load_digits",
    )
