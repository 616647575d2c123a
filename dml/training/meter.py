import json
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_only

from dml.data.dataset import Batch
from dml.training.data import DataModule


class SpeedMeter(Callback):
    """Measures the speed and the memory of a training, and how long it waits for images.

    Add it to a run by ``'+callbacks.speed={_target_: dml.training.meter.SpeedMeter, path: speed.json}'``. Set
    ``trainer.val_check_interval=null`` too, since the time of a validation would count. The file holds

    - images_per_second: images that all processes together train in a second;
    - share_waiting: share of the time in which the training loop waited for images;
    - peak_memory_mib: largest memory that torch held on the GPU of the first process; null on a CPU;
    - host_waits: places in the code, as "file:line", where a step whose metrics aren't logged waited for the GPU; null
      on a CPU.

    Args:
        path: path of the JSON file.
        warm_up: number of first steps that aren't measured, at least 2. In these, libraries choose algorithms and
            compile, and the loader fills its queue.
    """

    def __init__(self, path: str | Path, warm_up: int = 10) -> None:
        self.path = Path(path)
        self.warm_up = max(2, warm_up)
        self.images = 0
        self.host_waits: list[str] | None = None
        self._started: float | None = None
        self._waited = 0.0
        self._steps = 0  # of this process: a resumed run has a warm-up too

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, *_: Any) -> None:
        """Start the clock after the warm-up, and the count of waits for one step in the warm-up."""
        if self._steps == self.warm_up - 2 and pl_module.device.type == "cuda":
            self._warnings = warnings.catch_warnings(record=True)
            self._caught: Any = self._warnings.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        if self._steps >= self.warm_up and self._started is None:
            self._started, self._waited = _now(pl_module.device), _stream_wait(trainer)
        if self._started is not None:
            self.images += len(batch[0]) * trainer.world_size

    def on_train_batch_end(self, _trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the count of waits."""
        if self._steps == self.warm_up - 2 and pl_module.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            self._warnings.__exit__(None, None, None)
            self.host_waits = [
                f"{warning.filename}:{warning.lineno}"
                for warning in self._caught
                if "called a synchronizing" in str(warning.message)  # torch also warns of the mode itself
            ]
        self._steps += 1

    @rank_zero_only
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, unless the training ended within the warm-up."""
        if self._started is None:
            return
        device = pl_module.device
        seconds = _now(device) - self._started
        is_gpu = device.type == "cuda"
        measured = {
            "images_per_second": self.images / seconds,
            "share_waiting": (_stream_wait(trainer) - self._waited) / seconds,
            "peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20 if is_gpu else None,
            "host_waits": self.host_waits,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(measured, indent=2), encoding="utf-8")


def _now(device: torch.device) -> float:
    """Wait until the device has finished all of its work, and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def _stream_wait(trainer: Trainer) -> float:
    images = cast(DataModule, trainer.datamodule)  # type: ignore[attr-defined]
    return images.stream.wait_seconds
