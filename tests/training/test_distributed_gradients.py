"""Every loss of conf/loss on several processes against one process that has the whole batch."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import CONF, settings_of
from gloo import on_processes
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pytorch_lightning import Callback, Trainer
from torch import Tensor, nn
from trainers import small_trainer

from dml.losses.regularizers import EmbeddingDrift
from dml.run.builders import build_losses
from dml.training.callbacks.process_state import StepSeed
from dml.training.module import MetricLearner
from dml.training.optimizers import ParameterGroups, optimizer_by_role

pytestmark = pytest.mark.distributed

LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
CHANGED = {
    "xbm": ["loss.start=1", "loss.size=40"],  # a memory that is used, and overwritten, within three batches
    "recall_at_k": ["loss.mixup=true"],  # every process mixes by the same weights
}
ROWS, INPUTS, SIZE, BATCH = 96, 10, 7, 24

Gradients = list[dict[str, Tensor]]
"""Those that the optimizer gets in each of its steps, by the parameter's name."""


def labels() -> Tensor:
    """(N, 2), eight classes in three super-classes, in no order."""
    classes = torch.from_numpy(np.random.default_rng(0).permutation(np.arange(ROWS) % 8))
    return torch.stack([classes, classes // 3], dim=1)


class Towers(nn.Module):
    """A small network of its own for each loss, so that no loss covers another one's gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, SIZE, bias=False)) for name in LOSSES}
        )

    @property
    def parameter_groups(self) -> ParameterGroups:
        return {"heads": list(self.heads.parameters())}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: tower(images) for name, tower in self.heads.items()}


@pytest.fixture(scope="module")
def configs() -> dict[str, DictConfig]:
    """Composed once, and each file alone: that is what takes the time."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return {name: compose(f"loss/{name}", overrides=CHANGED.get(name)) for name in LOSSES}


def build(config: DictConfig) -> nn.Module:
    torch.manual_seed(0)
    loss = build_losses(settings_of(config), {"H": SIZE}, labels().numpy())["H"]
    for part in loss.modules():
        if isinstance(part, EmbeddingDrift):
            part.stored = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return loss


class Shares:
    """One process's contiguous share of each batch, as the stream gives it; the rows come in no order."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(2)
        images, all_labels = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64), labels()
        while True:
            rows = torch.randperm(ROWS, generator=generator)[:BATCH].chunk(self.count)[self.rank]
            yield images[rows], all_labels[rows], rows


class Recorder(Callback):
    def __init__(self) -> None:
        self.gradients: Gradients = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        grads = {name: parameter.grad for name, parameter in pl_module.named_parameters()}
        assert all(grad is not None for grad in grads.values())
        self.gradients.append({name: grad.clone() for name, grad in grads.items()})


def train(configs: dict[str, DictConfig], count: int, accumulate: int) -> tuple[Gradients, dict[str, Tensor], float]:
    """Three steps of every loss -> their gradients, the state after them, and the logged loss."""
    head_losses = {name: build(config) for name, config in configs.items()}
    return fit(Towers(), head_losses, count, accumulate)


def fit(
    model: Any, losses: dict[str, nn.Module], count: int, accumulate: int = 1, **settings: Any
) -> tuple[Gradients, dict[str, Tensor], float]:
    """Three steps -> their gradients, the state after them, and the logged loss."""

    def optimizer(roles: ParameterGroups) -> torch.optim.Optimizer:
        return optimizer_by_role(roles, optimizer=torch.optim.SGD, lr=0.002, heads_lr_multiplier=1.0)

    module = MetricLearner(
        model, losses, optimizer=optimizer, schedule=None, evaluate=lambda *_: {}, **settings
    ).double()
    recorder = Recorder()
    trainer = small_trainer(
        3,
        devices=count,
        strategy="ddp" if count > 1 else "auto",
        use_distributed_sampler=False,
        accumulate_grad_batches=accumulate,
        callbacks=[StepSeed(0), recorder],
    )
    rank = torch.distributed.get_rank() if count > 1 else 0
    trainer.fit(module, Shares(rank, count))
    return recorder.gradients, module.state_dict(), float(trainer.callback_metrics["loss"])


def assert_equal(name: str, found: Tensor, expected: Tensor) -> None:
    """To nine digits of the largest entry; what adds up in another order is no more equal than that."""
    assert found.shape == expected.shape, name
    error, largest = (found - expected).abs().max().item(), expected.abs().max().item()
    assert error <= 1e-9 * largest, f"{name}: {error:.1e} of {largest:.1e}"


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")
@pytest.mark.parametrize(("count", "accumulate"), [(2, 1), (3, 1), (2, 2)])
def test_the_gradients_are_those_of_one_process_with_the_whole_batch(
    configs: dict[str, DictConfig], tmp_path: Path, count: int, accumulate: int
) -> None:
    gradients, state, loss = train(configs, 1, accumulate)
    assert len(gradients) == 3
    for name in LOSSES:
        for step in gradients:
            assert any(grad.any() for key, grad in step.items() if f".{name}." in key), f"{name}: nothing to compare"
    for found, its_state, its_loss in on_processes(count, tmp_path, train, configs, count, accumulate):
        assert its_loss == pytest.approx(loss, rel=1e-9)
        for step, expected in zip(found, gradients, strict=True):
            assert step.keys() == expected.keys()
            for name, gradient in expected.items():
                assert_equal(name, step[name], gradient)
        assert its_state.keys() == state.keys()
        for name, value in state.items():  # memories and hierarchies too
            assert_equal(name, its_state[name], value)


class HalfUsed(nn.Module):
    """A loss of a user's: one parameter is used in every second step, the other, which is NaN, in none."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.tensor(float("nan")))
        self.num_calls = 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.num_calls += 1
        value = embeddings.square().mean()
        return value * self.scale if self.num_calls % 2 else value


class HalfUsedTower(nn.Module):
    """A head of a user's, with a layer that its embeddings don't depend on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(INPUTS, SIZE), nn.Linear(2, 2)

    @property
    def parameter_groups(self) -> ParameterGroups:
        return {"heads": list(self.parameters())}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"H": self.used(images)}


def train_half_used(count: int, gradient_cache: int | None = None) -> tuple[Gradients, dict[str, Tensor], float]:
    return fit(HalfUsedTower(), {"H": HalfUsed()}, count, gradient_cache=gradient_cache)


@pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")
@pytest.mark.parametrize("gradient_cache", [None, 5])
def test_a_parameter_that_a_batch_does_not_use_has_a_gradient_of_0(tmp_path: Path, gradient_cache: int | None) -> None:
    gradients, state, loss = train_half_used(1)
    assert [bool(step["losses.H.scale"]) for step in gradients] == [True, False, True]
    assert not any(step[name].any() for step in gradients for name in step if "unused" in name)
    assert math.isfinite(loss)
    for found, its_state, its_loss in on_processes(2, tmp_path, train_half_used, 2, gradient_cache):
        assert its_loss == pytest.approx(loss, rel=1e-9)
        for step, expected in zip(found, gradients, strict=True):
            for name, gradient in expected.items():
                assert_equal(name, step[name], gradient)
        torch.testing.assert_close(its_state, state, equal_nan=True)


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_draws_random_numbers(configs: dict[str, DictConfig], name: str) -> None:
    # each process would draw its own, and with them the gradient of another loss
    loss = build(configs[name]).double()
    rows = torch.arange(BATCH)
    embeddings = torch.randn(BATCH, SIZE, dtype=torch.float64, requires_grad=True)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    needs = {"indices": rows} if getattr(loss, "needs_indices", False) else {}
    loss(embeddings, labels()[:BATCH], **needs).backward()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]
