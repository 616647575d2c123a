"""The JSON file of finished rows."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dml.runtime.files import replacing
from faults.rows import Result, Verdict


class Store:
    """Reads and writes the results of finished rows.

    Args:
        path: path of the file.
        resume: whether rows that are finished in the file are skipped.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.resume = path, resume

    def read(self, name: str) -> Result | None:
        """Return the result of a row that is skipped; None if the row is to be tried."""
        return self._read_file().get(name) if self.resume else None

    def write(self, result: Result) -> None:
        """Write the result of a row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = self._read_file() | {result.name: result}
        with replacing(self.path) as partial:
            partial.write_text(json.dumps({name: asdict(stored) for name, stored in content.items()}, indent=1) + "\n")

    def read_results(self, names: Sequence[str]) -> list[Result]:
        """Return the results of those rows that are finished."""
        content = self._read_file()
        return [content[name] for name in names if name in content]

    def _read_file(self) -> dict[str, Result]:
        if not self.path.exists():
            return {}
        rows = json.loads(self.path.read_text())
        return {
            name: Result(**row | {"failures": [Verdict(**failure) for failure in row["failures"]]})
            for name, row in rows.items()
        }
