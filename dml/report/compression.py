"""The table of smaller vectors, which `dml compress` measures: as values by name, as text, and in the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml.evaluation.compression import METRICS, CompressionRow
from dml.report.run import ReportedRun
from dml.runtime.text.text_tables import markdown_table

HEADER = ("vectors", "dimensions", "stored as", "bytes", "recall@1", "MAP@R", "queries/s")
"""The columns of the table; the metrics are in percent."""

FIELDS = {"numbers": int, "bytes": int, "rescored_bytes": int, "queries_per_second": float}


def make_values(rows: Iterable[CompressionRow]) -> dict[str, Any]:
    """Return values such as {"prefix8/int8/level0/recall@1": 0.93, "prefix8/int8/bytes": 24}."""
    return {
        f"{row.vectors}/{row.storage}/{name}": value
        for row in rows
        for name, value in {**{field: getattr(row, field) for field in FIELDS}, **row.metrics}.items()
    }


def read_values(values: Mapping[str, Any]) -> list[CompressionRow]:
    """Return the rows of `make_values`, in their order; names without a row, such as "split", are left out."""
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for key, value in values.items():
        vectors, storage, name = (*key.split("/", 2), "", "")[:3]
        if name:
            grouped.setdefault((vectors, storage), {})[name] = value
    return [
        CompressionRow(
            vectors,
            storage,
            metrics={name: value for name, value in row.items() if name not in FIELDS},
            **{field: kind(row[field]) for field, kind in FIELDS.items()},
        )
        for (vectors, storage), row in grouped.items()
    ]


def format_cells(rows: Sequence[CompressionRow]) -> list[list[str]]:
    """Return the cells of each row below `HEADER`; of several levels, the metrics are those of the finest."""
    return [
        [
            row.vectors,
            str(row.numbers),
            row.storage,
            f"{row.bytes} + {row.rescored_bytes}" if row.rescored_bytes else str(row.bytes),
            *(f"{100 * row.metrics[f'level0/{metric}']:.1f}" for metric in METRICS),
            f"{row.queries_per_second:,.0f}",
        ]
        for row in rows
    ]


def format_rows(rows: Sequence[CompressionRow]) -> str:
    """Format the table in Markdown."""
    return markdown_table(HEADER, format_cells(rows), right=(1, 3, 4, 5, 6))


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
