import os
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from dml.ops.run_folder import RunFolder


class BestCheckpoint(ModelCheckpoint):
    """Write ``checkpoints/best.ckpt`` after each validation that is better than all before it.

    Unlike Lightning's `ModelCheckpoint`, a resumed run still knows the score that it saved last, and a run whose
    folder was moved or copied still knows the best score.

    Args:
        monitor: name of a metric of a validation, without the name of the split: "level0/recall@1".
        mode: "max" if larger values of the metric are better, "min" if smaller ones are.
    """

    def __init__(self, monitor: str, mode: str = "max") -> None:
        super().__init__(monitor=monitor, mode=mode, save_on_train_epoch_end=False, enable_version_counter=False)
        self.metric = monitor

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder of the run and the split that is validated."""
        path = RunFolder(trainer.default_root_dir).best_checkpoint
        self.dirpath, self.filename = os.path.realpath(path.parent), path.stem
        self.monitor = f"{pl_module.validated_on}/{self.metric}"
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what Lightning does, and the last score, with the files in the present folder of the run."""
        super().load_state_dict(_move_files(str(self.dirpath), state_dict))
        self.current_score = state_dict["current_score"]


def _move_files(folder: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a `ModelCheckpoint` with its files in another folder."""

    def move(path: str) -> str:
        return str(Path(folder, Path(path).name)) if path else path

    paths = {name: move(state[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
    best = {move(path): score for path, score in state["best_k_models"].items()}
    return state | paths | {"dirpath": folder, "best_k_models": best}
