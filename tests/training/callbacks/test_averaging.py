from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ONE_HEAD, Here
from pytorch_lightning import Callback, LightningModule
from runs import metrics, train
from torch import Tensor, nn
from trainers import small_trainer

from dml.runtime.run_folder import RunFolder
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.checkpoints import AtomicCheckpointIO, LastCheckpoint
from dml.training.checkpoints import load_model, read_checkpoint

State = dict[str, Tensor]


class Line(LightningModule):
    """A network with a frozen weight, running statistics, a counter and a flag, and a loss with a memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.model.register_parameter("frozen", nn.Parameter(torch.randn(50), requires_grad=False))
        self.model.register_buffer("odd", torch.tensor(False))
        self.losses = nn.Module()
        self.losses.register_buffer("memory", torch.zeros(3))
        self.run_description: dict[str, Any] = {}
        self.after: list[State] = []  # each step
        self.judged: list[State] = []

    def state(self) -> State:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.model.odd.logical_not_()
        self.losses.memory[self.trainer.global_step % 3] = 1.0 + self.trainer.global_step
        loss: Tensor = (self.model(batch) - 1).square().mean()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step > len(self.after):
            self.after.append(self.state())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.judged.append(self.state())

    def on_validation_epoch_end(self) -> None:
        self.judged.append(self.state())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Batches:
    """The same batch a number of times."""

    def __init__(self, count: int) -> None:
        self.batch = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self.batch] * self.count)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def fit(steps: int, folder: Path, *callbacks: Callback, resume: bool = False, **settings: Any) -> Line:
    module = Line()
    trainer = small_trainer(
        steps,
        enable_checkpointing=True,
        limit_val_batches=1.0,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=None,
        callbacks=[LastCheckpoint(every_n_steps=1), *callbacks],
        default_root_dir=folder,
        plugins=[AtomicCheckpointIO()],
        **{"val_check_interval": 100, **settings},
    )
    trainer.fit(module, Batches(1000), Batches(1), ckpt_path=RunFolder(folder).last_checkpoint if resume else None)
    return module


def average_of(states: list[State], decay: float) -> State:
    """By the definition, in float64; what isn't a real number is the last."""
    average = {name: value.double() for name, value in states[0].items()}
    for n, state in enumerate(states[1:], start=2):
        d = min(decay, n / (9 + n))
        average = {name: d * average[name] + (1 - d) * value.double() for name, value in state.items()}
    return {
        name: average[name].to(value.dtype) if value.is_floating_point() else value
        for name, value in states[-1].items()
    }


@pytest.mark.parametrize(("decay", "accumulate"), [(0.3, 1), (0.999, 2)])
def test_the_average_is_kept_in_the_checkpoint_beside_the_weights(
    tmp_path: Path, decay: float, accumulate: int
) -> None:
    path = RunFolder(tmp_path).last_checkpoint
    module = fit(8, tmp_path, Averaging(decay), accumulate_grad_batches=accumulate)
    assert len(module.after) == 8
    expected, written = average_of(module.after, decay), Line()
    load_model(written.model, path)
    for name, value in expected.items():
        torch.testing.assert_close(written.state()[name], value, rtol=1e-5, atol=1e-6)
        current = read_checkpoint(path)["current_model_state"][f"model.{name}"]
        assert torch.equal(current, module.after[-1][name]), name
    assert torch.equal(written.model.frozen, Line().model.frozen)  # to the last bit
    assert read_checkpoint(path)["state_dict"]["losses.memory"].tolist() == [7, 8, 6]  # no mixture of items
    assert not torch.allclose(expected["0.weight"], module.after[-1]["0.weight"], rtol=1e-3)


def test_validations_see_the_average_and_training_does_not(tmp_path: Path) -> None:
    module = fit(6, tmp_path / "averaged", Averaging(0.9), val_check_interval=2)
    plain = fit(6, tmp_path / "plain", val_check_interval=2)
    for after, expected in zip(module.after, plain.after, strict=True):
        assert all(torch.equal(after[name], expected[name]) for name in expected)
    assert len(module.judged) == 6  # a batch and its end, three times
    for number, state in enumerate(module.judged):
        for name, value in average_of(module.after[: 2 * (number // 2) + 2], 0.9).items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)
    stored = read_checkpoint(RunFolder(tmp_path / "averaged").last_checkpoint)["current_model_state"]
    assert torch.equal(stored["model.0.weight"], module.after[-1]["0.weight"])


def assert_same_weights(expected: Path, found: Path) -> None:
    checkpoints = [read_checkpoint(RunFolder(folder).last_checkpoint) for folder in (expected, found)]
    for part in ("state_dict", "current_model_state", "averaging_state"):
        first, second = (checkpoint[part] for checkpoint in checkpoints)
        assert first.keys() == second.keys()
        assert all(torch.equal(second[name], value) for name, value in first.items())


@pytest.mark.parametrize("interrupted_at", [1, 3, 4])
def test_interrupted_and_resumed_ends_bit_for_bit_the_same(tmp_path: Path, interrupted_at: int) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit(7, whole, Averaging(0.9), val_check_interval=2)
    fit(interrupted_at, parts, Averaging(0.9), val_check_interval=2)
    fit(7, parts, Averaging(0.9), val_check_interval=2, resume=True)
    assert_same_weights(whole, parts)


OPTIONS = [
    *ONE_HEAD,
    "loss=cluster",
    "training.proxies=class_means",
    "training.ema=0.9",
    "training.gradient_cache=3",
    "evaluation.crops=2",
    "scheduler=constant",
    "checkpoints.every_n_steps=100",
]
"""All options of training and test at once."""


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arguments = [*OPTIONS, f"dataset.root={small_emoji}", "trainer.max_steps=7"]
    return train(tmp_path_factory.mktemp("options") / "finished", *arguments)


@pytest.mark.thorough
def test_a_run_with_all_options_resumes_bit_for_bit(
    here: Here, small_emoji: Path, finished: Path, tmp_path: Path
) -> None:
    arguments = [*OPTIONS, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}"]
    here("train", *arguments, "trainer.max_steps=3")
    here("train", f"resume={tmp_path}", "trainer.max_steps=7")
    assert_same_weights(finished, tmp_path)
    assert metrics(tmp_path) == metrics(finished)
    assert (tmp_path / "metrics.csv").read_text() == (finished / "metrics.csv").read_text()


def test_evaluating_repeats_the_digits_of_the_average(here: Here, finished: Path, tmp_path: Path) -> None:
    here("evaluate", f"checkpoint={finished / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path}")
    trained = {name: value for name, value in metrics(finished).items() if name != "configuration"}
    assert metrics(tmp_path) == trained
