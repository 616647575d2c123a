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
    """Measures a training: images a second, peak memory, and what share of a step waits for its images.

    A callback for anyone: ``trainer.callbacks=[{_target_: dml.training.meter.SpeedMeter, path: speed.json}]``. Use it
    with ``trainer.val_check_interval=null``, as a validation's time counts too. The file holds

    - images_per_second: of all processes together;
    - share_waiting: the part of the time in which the training loop waited for the loader;
    - peak_memory_mib: what torch held at most on the first process's GPU; null on a CPU;
    - host_waits: how often one step, whose metrics aren't logged, waited for the GPU; null on a CPU.

    Args:
        path: of the file, JSON.
        warm_up: steps that aren't measured, 2 at least: the first ones choose algorithms, compile and fill the loader.
    """

    def __init__(self, path: str | Path, warm_up: int = 10) -> None:
        self.path = Path(path)
        self.warm_up = max(2, warm_up)
        self.images = 0
        self.host_waits: int | None = None
        self._started: float | None = None
        self._waited = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Begin with the step after the warm-up, and count the waits in the step before that isn't logged."""
        if batch_idx == self.warm_up - 2 and pl_module.device.type == "cuda":
            self._warnings = warnings.catch_warnings(record=True)
            self._caught: Any = self._warnings.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        if batch_idx >= self.warm_up and self._started is None:
            self._started, self._waited = _now(pl_module.device), _stream_wait(trainer)
        if self._started is not None:
            self.images += len(batch[0]) * trainer.world_size

    def on_train_batch_end(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """End the counting of waits."""
        if batch_idx == self.warm_up - 2 and pl_module.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            self._warnings.__exit__(None, None, None)
            self.host_waits = sum("synchronizing" in str(caught.message) for caught in self._caught)

    @rank_zero_only
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what was measured; nothing if the training ended within the warm-up."""
        if self._started is None:
            return
        device = pl_module.device
        seconds = _now(device) - self._started
        on_gpu = device.type == "cuda"
        measured = {
            "images_per_second": self.images / seconds,
            "share_waiting": (_stream_wait(trainer) - self._waited) / seconds,
            "peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None,
            "host_waits": self.host_waits,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(measured, indent=2), encoding="utf-8")


def _now(device: torch.device) -> float:
    """The time at which the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def _stream_wait(trainer: Trainer) -> float:
    """Seconds that were waited for images so far."""
    images = cast(DataModule, trainer.datamodule)  # type: ignore[attr-defined]
    return images.stream.wait_seconds
