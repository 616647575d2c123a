import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""The end of the name of a file that is being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty file of this process to write to, which then takes the place of ``path``.

    At any time a whole file, or none, stands at ``path``. The file is created exclusively, so that neither another
    process nor a link can share it, and is deleted if the writing fails.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_partial_files(folder: Path) -> None:
    """Deletes what killed processes were writing below ``folder``; nobody may be writing there now."""
    for partial in folder.rglob(f".*{PARTIAL}"):
        partial.unlink(missing_ok=True)
