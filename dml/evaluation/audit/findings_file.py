"""The CSV file of an audit: a line for each finding, in which the user fills in what is to be done."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dml.data.table_changes.corrections import iterate_rows
from dml.evaluation.audit.findings import Finding
from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import format_csv

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
    rows = [dict.fromkeys(COLUMNS, "") | cells for _, cells in iterate_rows(path)]
    return [row for row in rows if any(cell for column, cell in row.items() if column not in FILLED_BY_AUDIT)]


def write_findings(
    path: Path, findings: Sequence[Finding], names: Mapping[str, str], decided: Sequence[Mapping[str, str]] = ()
) -> None:
    """Write the findings, below the lines that the user has decided on before.

    Args:
        path: file to write.
        findings: the findings, ranked.
        names: shown path of each image, by its path in the table.
        decided: lines of an earlier file, see `read_decided_rows`; a finding that is among them isn't written again.
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
