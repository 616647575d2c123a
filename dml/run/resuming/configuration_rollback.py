"""The configuration of a resumed run, which is put back if its new settings can't be trained with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_only

from dml.runtime.run_folder import RunFolder


@contextmanager
def restoring_configuration(folder: RunFolder) -> Iterator[None]:
    """Put `.hydra/` of a run back if the body of the ``with`` statement fails before there is another checkpoint.

    Some new settings prove impossible only when the training begins. The run would keep them, and couldn't be resumed
    without them either.
    """
    before = folder.read_configuration() if folder.has_configuration else None
    checkpoint = _identify(folder.last_checkpoint)
    try:
        yield
    except Exception:
        if before is not None and _identify(folder.last_checkpoint) == checkpoint:
            rank_zero_only(folder.write_configuration)(*before)
        raise


def _identify(file: Path) -> tuple[int, int] | None:
    """Return what another file at the same path would differ in; None if there is none."""
    if not file.exists():
        return None
    state = file.stat()
    return state.st_ino, state.st_mtime_ns
