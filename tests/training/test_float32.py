from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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


def test_training_steps_get_what_was_asked_for_and_all_else_float32() -> None:
    module: Any = None
    asked = {"highest": FLOAT32, "high": TF32, "medium": ("medium", True), None: ("highest", True)}
    for precision, expected in asked.items():
        callback = Float32Precision(precision)
        callback.setup(on("cuda"), module, "fit")
        assert chosen() == FLOAT32
        callback.on_train_batch_start(on("cpu"), module, None, 0)  # a CPU is left alone
        assert chosen() == FLOAT32
        callback.on_train_batch_start(on("cuda"), module, None, 0)
        assert chosen() == expected
        callback.on_train_batch_end(on("cuda"), module, None, None, 0)
        assert chosen() == FLOAT32
