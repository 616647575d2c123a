"""The section of a report on smaller vectors, which ``dml compress`` measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from dml.evaluation.compression.rows_as_values import HEADER, format_cells, read_values
from dml.evaluation.report.reported_run import ReportedRun


@dataclass(frozen=True)
class CompressionSection:
    """The table of smaller vectors.

    Args:
        split: name of the split that was measured.
        threads: number of threads of the searches, such as "1 thread".
        rows: cells of each row, below the header.
        header: heads of the columns.
    """

    split: str
    threads: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = HEADER


def make_compression_section(run: ReportedRun) -> CompressionSection | None:
    """Make the section; None if smaller vectors weren't measured, or were those of another step of the training."""
    values = run.compression
    if not values or values.get("step") != run.metrics.get("step"):
        return None
    threads = int(values["threads"])
    label = f"{threads} thread{'s' if threads > 1 else ''}"
    return CompressionSection(str(values["split"]), label, format_cells(read_values(values)))
