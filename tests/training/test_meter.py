import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dml.training import meter
from dml.training.meter import SpeedMeter

WARM_UP, STEPS, IMAGES = 3, 7, 5


def measured(path: Path, monkeypatch: pytest.MonkeyPatch, device: str, steps: int = STEPS) -> Any:
    """What the meter writes of steps of two seconds, of which half a second is waited for images."""
    clock = SimpleNamespace(now=0.0)
    stream = SimpleNamespace(wait_seconds=0.0)
    trainer: Any = SimpleNamespace(world_size=2, datamodule=SimpleNamespace(stream=stream))
    module: Any = SimpleNamespace(device=torch.device(device))
    monkeypatch.setattr(meter, "perf_counter", lambda: clock.now)
    batch: Any = (torch.zeros(IMAGES, 3, 2, 2), None, None)
    speed = SpeedMeter(path, warm_up=WARM_UP)
    for step in range(steps):
        speed.on_train_batch_start(trainer, module, batch, step)
        clock.now += 2.0
        stream.wait_seconds += 0.5
        if device == "cuda":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("the mode does not yet detect all synchronizing operations", stacklevel=1)
        speed.on_train_batch_end(trainer, module, None, batch, step)
    speed.on_train_end(trainer, module)
    return json.loads(path.read_text()) if path.exists() else None


def test_it_measures_what_comes_after_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(tmp_path / "new" / "speed.json", monkeypatch, "cpu") == {
        "images_per_second": 2 * IMAGES / 2.0,
        "share_waiting": 0.25,
        "peak_memory_mib": None,
        "host_waits": None,
    }


@pytest.mark.filterwarnings("ignore:the mode", "ignore:called a synchronizing")
def test_on_a_gpu_it_also_measures_memory_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    found = measured(tmp_path / "speed.json", monkeypatch, "cuda")
    assert found["peak_memory_mib"] == 3.0
    (place,) = found["host_waits"]
    assert place.startswith(f"{__file__}:")
    assert modes == ["warn", "default"]


def test_a_training_within_the_warm_up_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(tmp_path / "speed.json", monkeypatch, "cpu", steps=WARM_UP) is None
