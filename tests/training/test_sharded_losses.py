"""Losses that are sharded over processes against one process that has the whole batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ONE_HEAD, Here
from gloo import on_processes
from pytorch_lightning import Callback, Trainer
from runs import TWO, metrics, run_ranks
from torch import Tensor, nn
from trainers import small_trainer

from dml.losses.compose import AtLevel, WeightedSum
from dml.losses.happier import ClusterLoss, SmoothHierarchicalAPLoss
from dml.losses.matryoshka import MatryoshkaLoss
from dml.losses.recall_at_k import RecallAtKLoss
from dml.losses.rll import RankedListLoss
from dml.losses.roadmap import CalibrationLoss
from dml.losses.smooth_ap import SmoothAPLoss
from dml.training.module import MetricLearner
from dml.training.optimizers import ParameterGroups, optimizer_by_role

pytestmark = pytest.mark.distributed

INPUTS, SIZE, BATCH = 10, 6, 24


def make_losses() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "rll": RankedListLoss(),
        "rll_both_sides": RankedListLoss(detach_gallery=False, positive_temperature=3.0),
        "recall_at_k": RecallAtKLoss(),
        "recall_at_k_mixup": RecallAtKLoss((1, 3), 0.1, 0.5, count_query=False, mixup=True),
        "h_ap": SmoothHierarchicalAPLoss(),
        "h_ap_smooth": SmoothHierarchicalAPLoss(smooth_h_rank=True, include_query=False),
        "happier": WeightedSum(
            {"h_ap": SmoothHierarchicalAPLoss(), "cluster": ClusterLoss(BATCH, SIZE)}, {"h_ap": 0.9, "cluster": 0.1}
        ),
        # the mean over violating pairs is no mean over queries: this term stays whole
        "roadmap": WeightedSum({"ap": SmoothAPLoss(), "pairs": CalibrationLoss()}, {"ap": 1.0, "pairs": 1.0}),
        "coarse": AtLevel(RankedListLoss(), 1),
        "matryoshka": MatryoshkaLoss([RankedListLoss(), RecallAtKLoss()], [3, SIZE]),
    }


CASES = {
    "every row has positives": torch.arange(BATCH) % 6,
    "some rows are empty": torch.tensor([0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 7] * 2) + 8 * (torch.arange(BATCH) // 12),
    "all rows of the first process are empty": torch.arange(BATCH).clamp(max=12),
    "all rows are empty": torch.arange(BATCH),
    "one class": torch.zeros(BATCH, dtype=torch.long),
    "every image twice": torch.arange(BATCH) % 4,
}


class Cases:
    """One process's contiguous share of one batch for each case."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def __len__(self) -> int:
        return len(CASES)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(2)
        for name, classes in CASES.items():
            images = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64)
            if name == "every image twice":
                images = images[torch.arange(BATCH) % (BATCH // 2)]
            labels, rows = torch.stack([classes, classes // 3], dim=1), torch.arange(BATCH)
            yield tuple(part.chunk(self.count)[self.rank] for part in (images, labels, rows))  # type: ignore[misc]


class Towers(nn.Module):
    """A small network of its own for each loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleDict({name: nn.Linear(INPUTS, SIZE) for name in make_losses()})

    @property
    def parameter_groups(self) -> ParameterGroups:
        return {"heads": list(self.heads.parameters())}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: tower(images) for name, tower in self.heads.items()}


class Recorder(Callback):
    """Keeps each step's gradients and logged values, and how many queries each loss had."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.num_queries: set[int] = set()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        def count(loss: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
            start, stop, _ = named["queries"].indices(BATCH)
            self.num_queries.add(stop - start)

        for loss in pl_module.losses.values():
            loss.register_forward_pre_hook(count, with_kwargs=True)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.steps.append({name: parameter.grad.clone() for name, parameter in pl_module.named_parameters()})

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        logged = trainer.callback_metrics
        self.steps[-1] |= {name: value.clone() for name, value in logged.items() if name.startswith("loss")}


def train(count: int, gradient_cache: int | None = None, shard: bool = True) -> tuple[list[dict[str, Tensor]], int]:
    """One step of each case, at a learning rate of 0 -> gradients and values by name, and the number of queries."""

    def optimizer(roles: ParameterGroups) -> torch.optim.Optimizer:
        return optimizer_by_role(roles, optimizer=torch.optim.SGD, lr=0.0, heads_lr_multiplier=1.0)

    module = MetricLearner(
        Towers(),
        make_losses(),
        optimizer=optimizer,
        schedule=None,
        evaluate=lambda *_: {},
        gradient_cache=gradient_cache,
        shard_loss=shard,
    ).double()
    recorder = Recorder()
    parallel = {"devices": count, "strategy": "ddp" if count > 1 else "auto", "use_distributed_sampler": False}
    trainer = small_trainer(len(CASES), **parallel, log_every_n_steps=1, callbacks=[recorder])
    trainer.fit(module, Cases(torch.distributed.get_rank() if count > 1 else 0, count))
    (num_queries,) = recorder.num_queries
    return recorder.steps, num_queries


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")
@pytest.mark.parametrize(
    ("count", "gradient_cache", "shard"), [(2, None, True), (3, None, True), (2, 5, True), (2, None, False)]
)
def test_values_and_gradients_are_those_of_one_process(
    tmp_path: Path, count: int, gradient_cache: int | None, shard: bool
) -> None:
    whole, num_queries = train(1)
    assert num_queries == BATCH
    assert len(whole) == len(CASES)
    for found, num_own in on_processes(count, tmp_path, train, count, gradient_cache, shard):
        assert num_own == (BATCH // count if shard else BATCH)
        for case, step, expected in zip(CASES, found, whole, strict=True):
            assert step.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(
                    step[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, at=f"{case}, {name}": f"{at}: {text}"
                )


def test_two_processes_train_two_steps(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "model.heads=[M,H]", "trainer.accelerator=cpu"]
    arguments += ["trainer.max_steps=2", "trainer.val_check_interval=null"]
    arguments += ["optimizer=sgd", "optimizer.lr=0.001", "loss=recall_at_k"]
    one, two = tmp_path / "one", tmp_path / "two"
    here("train", *arguments, f"hydra.run.dir={one}")
    ended = run_ranks(tmp_path, *arguments, f"hydra.run.dir={two}", "training.gradient_cache=3", *TWO)
    assert [rank.code for rank in ended] == [0, 0]
    expected, found = ((folder / "metrics.csv").read_text().splitlines() for folder in (one, two))
    assert len(expected) == len(found) == 3
    assert found[0] == expected[0]
    for name, first, second in zip(*(line.split(",") for line in (expected[0], expected[2], found[2])), strict=True):
        if name.startswith("loss"):
            assert float(second) == pytest.approx(float(first), rel=1e-5), name
    assert metrics(two)["step"] == 2
