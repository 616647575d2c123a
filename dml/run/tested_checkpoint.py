"""The checkpoint of a run that stands for its trained model."""

from pathlib import Path

from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable
from dml.training.checkpoints import TrainingProgress


def find_checkpoint(folder: RunFolder) -> Path:
    """Return the checkpoint of a run that its test took, or would take.

    Raises:
        InputError: if the folder has no checkpoint.
    """
    last, best = folder.last_checkpoint, folder.best_checkpoint
    if not last.exists() and not best.exists():
        raise InputError(
            f"{printable(folder.path)}: neither a run with checkpoints, nor a folder that save_pretrained wrote"
        )
    if not best.exists() or _selects_last(folder):
        return last
    if last.exists() and TrainingProgress.read(best).stage != TrainingProgress.read(last).stage:
        return last  # the best one is of an earlier stage
    return best


def _selects_last(folder: RunFolder) -> bool:
    if folder.is_finished:
        return bool(folder.metrics().get("selection") == "last")
    return bool(folder.has_configuration and folder.config.get("evaluation", {}).get("selection") == "last")
