"""What a data audit finds, and the images that it looks at."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dml.data.table import ImageTable

NEAR_DUPLICATE = "near_duplicate"
DOUBTFUL_LABEL = "doubtful_label"
MIXED_CLASSES = "mixed_classes"
DIVIDED_CLASS = "divided_class"
SMALL_CLASS = "small_class"
BROKEN_IMAGE = "broken_image"
ODD_IMAGE = "odd_image"
ISSUES = (NEAR_DUPLICATE, DOUBTFUL_LABEL, MIXED_CLASSES, DIVIDED_CLASS, SMALL_CLASS, BROKEN_IMAGE, ODD_IMAGE)
"""The kinds of findings, in the order of a page."""


@dataclass(frozen=True)
class AuditedImages:
    """The images of an audit, each once, all of which can be read.

    Args:
        table: the images.
        embeddings: (N, D) L2-normalised embeddings, see `spread_embeddings`.
        pictures: (N, S, S) grey values of the pictures, scaled to small squares, float32.
        contrasts: (N,) standard deviations of the grey values.
        sizes: (N, 2) widths and heights in pixels.
    """

    table: ImageTable
    embeddings: Tensor
    pictures: Tensor
    contrasts: NDArray[np.float32]
    sizes: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels (N,) of the finest level."""
        return self.table.labels[:, 0]

    def name_class(self, label: int) -> str:
        """Return the name of a class of the finest level; its number if it has none, "" for `UNKNOWN`."""
        return self.table.name_class(label)


@dataclass(frozen=True)
class Finding:
    """One finding of an audit, a line of its CSV file.

    Args:
        issue: kind of the finding, one of `ISSUES`.
        score: how sure or how bad it is; findings of a kind are ranked by it, the highest first.
        remark: the finding in words.
        path: path of the image; "" for a finding about classes.
        label: name of the image's class, or of a class.
        other_path: path of the other image of a pair.
        other_label: name of the class that is suggested, or of the other class of a pair.
        pictures: rows of the images to show, one list for each line of pictures.
    """

    issue: str
    score: float
    remark: str
    path: str = ""
    label: str = ""
    other_path: str = ""
    other_label: str = ""
    pictures: tuple[tuple[int, ...], ...] = ()
