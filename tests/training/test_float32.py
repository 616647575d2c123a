from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback

from dml.training.callbacks.process_state import Float32Precision

FLOAT32, TF32 = ("highest", False), ("high", True)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = convolutions


def chosen() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def on(device: str) -> Any:
    return SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("highest", FLOAT32), ("high", TF32), ("medium", ("medium", True)), (None, ("highest", True))],
)
def test_training_steps_get_what_was_asked_for_and_all_else_float32(precision: Any, expected: tuple[str, bool]) -> None:
    callback, module = Float32Precision(precision), SimpleNamespace()
    callback.setup(on("cuda"), module, "fit")
    assert chosen() == FLOAT32
    callback.on_train_batch_start(on("cuda"), module, None, 0)
    assert chosen() == expected
    callback.on_train_batch_end(on("cuda"), module, None, None, 0)
    assert chosen() == FLOAT32


def test_a_cpu_is_left_alone() -> None:
    callback: Callback = Float32Precision("medium")
    before = chosen()
    callback.setup(on("cpu"), None, "fit")
    callback.on_train_batch_start(on("cpu"), None, None, 0)
    assert chosen() == before
