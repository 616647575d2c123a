"""The thresholds and the findings of an audit, and their CSV file, in which the user fills in what is to be done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dml.data.layout import iterate_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.files import write_text
from dml.runtime.text import format_csv

SHARES = ("copy_cosine", "mixed", "divided")
"""The thresholds that lie between 0 and 1."""


@dataclass(frozen=True)
class AuditSettings:
    """The thresholds of a data audit; conf/audit.yaml explains each of them, and its unit.

    Raises:
        InputError: if a threshold can't be used.
    """

    components: int = 320
    neighbors: int = 10
    images_per_class: int = 3
    temperature: float = 0.07
    copy_bits: int = 30
    copy_cosine: float = 0.3
    mixed: float = 0.6
    divided: float = 0.75
    smallest_class: int = 3
    smallest_side: int = 32
    largest_ratio: float = 4.0
    smallest_contrast: float = 4.0
    isolation: float = 4.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in SHARES and not 0 <= value <= 1:
                raise InputError(f"audit.{field.name}={value}: a number from 0 to 1")
            if field.name in ("components", "neighbors", "images_per_class", "temperature") and not value > 0:
                raise InputError(f"audit.{field.name}={value}: a number above 0")


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
        table: table of the images.
        embeddings: (N, D) L2-normalized embeddings, see `spread_embeddings`.
        pictures: (N, S, S) gray values of the pictures, scaled to small squares, float32.
        contrasts: (N,) standard deviations of the gray values.
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


COLUMNS = ("issue", "score", "remark", "path", "label", "other_path", "other_label", "action", "new_label")
FILLED_BY_AUDIT = COLUMNS[:7]
IDENTITY = ("issue", "path", "label", "other_path", "other_label")
"""The columns that tell whether two lines are the same finding."""


def read_decided_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of an earlier audit's file in which the user has filled in anything; none without a file.

    What can be filled in is an action, a new label, and columns of the user's own, such as notes.

    Raises:
        InputError: if the file isn't one of an audit.
    """
    if not path.exists():
        return []
    rows = [
        dict.fromkeys(COLUMNS, "") | cells
        for _, cells in iterate_rows(path, ("action", "path"), "give the columns of dml audit")
    ]
    return [row for row in rows if any(cell for column, cell in row.items() if column not in FILLED_BY_AUDIT)]


def write_findings(
    path: Path, findings: Sequence[Finding], names: Mapping[str, str], decided: Sequence[Mapping[str, str]] = ()
) -> None:
    """Write the findings, ranked, below the lines that the user has decided on before, see `read_decided_rows`.

    A finding that is among these lines isn't written again. ``names`` is the shown path of each image by its path in
    the table.
    """
    known = {tuple(row[column] for column in IDENTITY) for row in decided}
    rows = [_make_row(finding, names) for finding in findings]
    users_columns = [column for row in decided for column in row if column not in COLUMNS]
    columns = [*COLUMNS, *dict.fromkeys(users_columns)]
    undecided = [row for row in rows if tuple(row[column] for column in IDENTITY) not in known]
    cells = ([row.get(column, "") for column in columns] for row in (*decided, *undecided))
    write_text(path, format_csv([columns, *cells]))


def _make_row(finding: Finding, names: Mapping[str, str]) -> dict[str, str]:
    return {
        "issue": finding.issue,
        "score": f"{finding.score:.3f}",
        "remark": finding.remark,
        "path": names.get(finding.path, finding.path),
        "label": finding.label.strip(),
        "other_path": names.get(finding.other_path, finding.other_path),
        "other_label": finding.other_label.strip(),
        "action": "",
        "new_label": "",
    }
