import copy
import csv
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, StepLR
from torch.utils.data import DataLoader
from trainers import small_trainer

from dml.losses.compose import WeightedSum
from dml.losses.rll import RankedListLoss
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.runtime.errors import InputError
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.checkpoints import LastCheckpoint
from dml.training.callbacks.loss_schedule import LossSchedule
from dml.training.callbacks.process_state import StepSeed
from dml.training.embedders import CHOSEN_HEADS, Embedded, evaluate_heads
from dml.training.loggers import History
from dml.training.module import MetricLearner
from dml.training.optimizers import SchedulePace, optimizer_by_role

pytestmark = pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")


def model() -> EmbeddingModel:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone = Backbone(network, mean=(0.5,) * 3, std=(0.5,) * 3)
    taps, heads = {"L": "1", "H": "2"}, {"L": PoolHead, "H": PoolHead}
    return EmbeddingModel(backbone, taps=taps, head=heads, heads=["L", "H"], embed_dim=4, image_size=8)


class Batches:
    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=generator)
            yield images, torch.tensor([[0], [0], [1], [1], [2], [2]]), torch.arange(6)


def learner(**settings: Any) -> MetricLearner:
    def optimizer(roles: Any) -> torch.optim.Optimizer:
        return optimizer_by_role(roles, optimizer=torch.optim.SGD, lr=0.1)

    losses = {"L": RankedListLoss(), "H": RankedListLoss()}
    options = {"optimizer": optimizer, "schedule": None, "evaluate": lambda rows, labels: {}} | settings
    return MetricLearner(model(), losses, **options)


class Recorder(Callback):
    """Notes the learning rate that each step was taken with, the parameters after it, and a random number in it."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.states: list[dict[str, Tensor]] = []
        self.drawn: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.drawn.append(torch.rand(()).item())

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        self.states.append(copy.deepcopy(pl_module.model.state_dict()))


class SaveAtEnd(Callback):
    """Writes a checkpoint when training is over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)


def fit(
    module: MetricLearner, steps: int, *callbacks: Callback, ckpt_path: Path | None = None, **settings: Any
) -> Recorder:
    recorder = Recorder()
    trainer = small_trainer(steps, callbacks=[StepSeed(3), *callbacks, recorder], **settings)
    trainer.fit(module, Batches(), ckpt_path=ckpt_path)
    return recorder


def test_the_gradient_is_that_of_the_heads_losses_summed() -> None:
    module = learner()
    reference = model()
    images, labels, _ = next(iter(Batches()))
    sum(RankedListLoss()(rows, labels) for rows in reference(images).values()).backward()
    before = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    after = fit(module, 1).states[0]
    for name, parameter in reference.named_parameters():
        rate = 0.1 if name.startswith("backbone") else 1.0
        assert parameter.grad is not None
        torch.testing.assert_close(after[name], before[name] - rate * parameter.grad)


def test_the_backbone_and_the_schedule_stand_still_in_the_warm_up() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    start = model().state_dict()
    found = fit(learner(pace=SchedulePace(warmup_steps=2), schedule=schedule), 4)
    backbone = [name for name in start if name.startswith("backbone")]
    heads = [name for name in start if name.startswith("heads")]
    assert all(torch.equal(found.states[1][name], start[name]) for name in backbone)
    assert not any(torch.equal(found.states[2][name], start[name]) for name in backbone)
    assert not any(torch.equal(found.states[0][name], start[name]) for name in heads)
    assert found.rates == pytest.approx([0.1, 0.1, 0.1, 0.05])


INTERVALS = {"step": (1, 1), "epoch": (3, 1), "accumulated step": (1, 3), "accumulated epoch": (7, 3)}
"""For each interval the batches of an epoch, and those of a step."""


def pace_of(interval: str, warmup_steps: int = 0) -> SchedulePace:
    batches_per_epoch, batches_per_step = INTERVALS[interval]
    return SchedulePace(interval.split()[-1], warmup_steps, batches_per_step, batches_per_epoch)


def ended_intervals(interval: str, steps: int) -> int:
    """How many intervals have ended, counted batch by batch."""
    batches_per_epoch, batches_per_step = INTERVALS[interval]
    if interval.endswith("step"):
        return steps
    return sum(batch % batches_per_epoch == 0 for batch in range(1, steps * batches_per_step + 1))


def cosine(interval: int, length: int) -> float:
    return 0.1 * (0.01 + 0.99 * (1 + math.cos(math.pi * interval / length)) / 2)


SCHEDULED: dict[str, Callable[[Optimizer, int], LRScheduler] | None] = {
    "constant": None,
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
    "steps": lambda optimizer, steps: StepLR(optimizer, max(1, steps // 2), gamma=0.5),
}

SCHEDULES: dict[str, tuple[Callable[[Optimizer, int], LRScheduler], Callable[[int, int], float]]] = {
    "cosine": (lambda optimizer, length: CosineAnnealingLR(optimizer, length, eta_min=1e-3), cosine),
    "cosine by hand": (lambda optimizer, _: CosineAnnealingLR(optimizer, 5, eta_min=1e-3), lambda i, _: cosine(i, 5)),
    "multistep": (
        lambda optimizer, _: MultiStepLR(optimizer, [1, 3], gamma=0.5),
        lambda i, _: 0.1 * 0.5 ** ((i >= 1) + (i >= 3)),
    ),
    "step": (lambda optimizer, _: StepLR(optimizer, 2, gamma=0.5), lambda i, _: 0.1 * 0.5 ** (i // 2)),
}


PAIRS = [  # each schedule with each interval, every second time after a warm-up
    (name, interval, 4 * ((row + column) % 2))
    for row, name in enumerate(SCHEDULES)
    for column, interval in enumerate(INTERVALS)
]


@pytest.mark.parametrize(("name", "interval", "warmup_steps"), PAIRS)
def test_a_schedule_ends_where_the_run_ends(name: str, interval: str, warmup_steps: int) -> None:
    make, rate = SCHEDULES[name]
    steps, pace = 9, pace_of(interval, warmup_steps)
    trained = [ended_intervals(interval, max(0, step - warmup_steps)) for step in range(steps)]
    length = trained[-1] + 1  # the interval after the last would have the end's rate
    assert pace.schedule_length(steps) == length
    module = learner(pace=pace, schedule=lambda optimizer: make(optimizer, length))
    settings = {"accumulate_grad_batches": pace.batches_per_step}
    assert fit(module, steps, **settings).rates == pytest.approx([rate(i, length) for i in trained])


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(
    ("interval", "schedule", "lr"),
    [
        ("step", "constant", 0.02),
        ("epoch", "cosine", 0.1),
        ("accumulated step", "cosine", 0.02),
        ("accumulated epoch", "steps", 0.1),
    ],
)
def test_a_resumed_run_has_the_schedule_of_its_new_length(
    interval: str, schedule: str, lr: float, tmp_path: Path
) -> None:
    pace, make = pace_of(interval, warmup_steps=2), SCHEDULED[schedule]
    settings = {"accumulate_grad_batches": pace.batches_per_step}

    def module(steps: int, lr: float = 0.1) -> MetricLearner:
        optimizer = partial(optimizer_by_role, optimizer=torch.optim.SGD, lr=lr, momentum=0.9)
        made = None if make is None else lambda optimizer: make(optimizer, pace.schedule_length(steps))
        return learner(pace=pace, schedule=made, optimizer=optimizer)

    path = tmp_path / "last.ckpt"
    fit(module(5), 5, SaveAtEnd(path), **settings)
    resumed = fit(module(10, lr), 10, ckpt_path=path, **settings)
    assert resumed.rates == fit(module(10, lr), 10, **settings).rates[5:]  # to the bit


def test_random_numbers_are_a_function_of_the_seed_and_the_step() -> None:
    torch.manual_seed(1)
    first = fit(learner(), 3).drawn
    torch.manual_seed(2)
    assert fit(learner(), 3).drawn == first
    assert len(set(first)) == 3


def test_a_loss_that_asks_for_the_rows_gets_them() -> None:
    class Asks(RankedListLoss):
        needs_indices = True
        seen: Tensor

        def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
            self.seen = indices
            return super().forward(embeddings, labels)

    module = learner()
    module.losses["H"] = Asks()
    fit(module, 1)
    assert torch.equal(module.losses["H"].seen, torch.arange(6))


class Returning(nn.Module):
    """Returns what a function makes of the embeddings."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self.function(embeddings)


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda embeddings: embeddings.sum()[None], r"a tensor of shape \(1,\)"),
        (lambda embeddings: embeddings.detach().sum(), "a tensor without a gradient"),
        (lambda embeddings: embeddings.detach().sum().long(), r"a tensor of whole numbers \(torch\.int64\)"),
        (lambda _: 1.0, "a float"),
    ],
)
def test_what_is_no_loss_is_told_at_the_first_step(function: Callable[[Tensor], Any], returned: str) -> None:
    module = learner()
    for head in module.losses:
        module.losses[head] = Returning(function)
    with pytest.raises(InputError, match=rf"^loss: test_module\.Returning\.forward returned {returned}, expected"):
        fit(module, 1)


class Watched(RankedListLoss):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(self.negative_temperature)
        return super().forward(embeddings, labels)


def test_a_number_of_the_loss_moves_linearly() -> None:
    module = learner()
    module.losses["H"] = WeightedSum({"rll": Watched()}, {"rll": 1.0})
    module.losses["L"] = WeightedSum({"rll": Watched()}, {"rll": 1.0})
    fit(module, 4, LossSchedule("terms.rll.negative_temperature", start=20.0, end=0.0))
    for head in ("L", "H"):
        assert module.losses[head].terms["rll"].seen == [20.0, 15.0, 10.0, 5.0]  # Eq. 15


def test_a_schedule_of_what_is_no_number_is_refused() -> None:
    for attribute in ("temperature", "forward", "takes_queries"):
        with pytest.raises(InputError, match=rf"scheduler\.loss\.attribute={attribute}: .*its numbers are alpha"):
            LossSchedule(attribute, start=20.0, end=0.0).check_losses(learner().losses.values())


class StopAfter(Callback):
    """Ends the training after so many steps, as ``max_time`` does, or `FinalValidation` after the last."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == self.steps


def logged_losses(path: Path, steps: int, every: int, *callbacks: Callback) -> dict[int, tuple[float, float, float]]:
    """The losses of a training's history by step: the sum, and those of both heads.

    Before each checkpoint its row is written ahead.
    """
    saving = {"enable_checkpointing": True, "default_root_dir": path.parent}
    last = LastCheckpoint(every_n_steps=1)
    fit(learner(), steps, *callbacks, last, logger=[History(path)], log_every_n_steps=every, **saving)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {int(row["step"]): (float(row["loss"]), float(row["loss/L"]), float(row["loss/H"])) for row in rows}


def test_losses_are_logged_every_n_steps_and_in_the_last_step(tmp_path: Path) -> None:
    each = logged_losses(tmp_path / "each.csv", 5, 1)
    assert list(each) == [1, 2, 3, 4, 5]
    assert len(set(each.values())) == 5
    assert all(total == pytest.approx(low + high) for total, low, high in each.values())
    assert logged_losses(tmp_path / "some.csv", 5, 2, StopAfter(5)) == {step: each[step] for step in (2, 4, 5)}


def test_no_step_at_which_a_training_ends_early_gets_the_losses_of_another(tmp_path: Path) -> None:
    each = logged_losses(tmp_path / "each.csv", 5, 1)
    assert logged_losses(tmp_path / "stopped.csv", 9, 3, StopAfter(5)) == {3: each[3]}


def test_heads_and_sets_of_heads_can_be_evaluated() -> None:
    embedded = Embedded(
        {CHOSEN_HEADS: torch.ones(2, 2), "L": torch.zeros(2, 1), "L+H": torch.ones(2, 1)}, torch.arange(2)
    )

    def mean(embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        return {"mean": embeddings.mean().item(), "rows": len(rows)}

    found = evaluate_heads(embedded, [CHOSEN_HEADS, "L", "L+H"], mean, torch.device("cpu"))
    expected = {"mean": 1.0, "heads/L/mean": 0.0, "heads/L+H/mean": 1.0}
    assert found == expected | {"rows": 2, "heads/L/rows": 2, "heads/L+H/rows": 2}


@pytest.mark.parametrize("concatenation", ["normalized", "raw"])
def test_a_set_of_heads_is_concatenated_as_all_heads_are(concatenation: str) -> None:
    lengths = {"L": 2.0, "H": 6.0}
    generator = torch.Generator().manual_seed(0)
    parts = {head: length * F.normalize(torch.randn(5, 4, generator=generator)) for head, length in lengths.items()}
    module = learner(head_sets=["H+L", "L+H"])
    module.model.concatenation = concatenation
    found = module.finalize(Embedded(parts, torch.arange(5))).embeddings
    assert list(found) == [CHOSEN_HEADS, "H+L", "L+H", "L", "H"]
    assert torch.equal(found["L+H"], found[CHOSEN_HEADS])
    longer = 3.0 if concatenation == "raw" else 1.0
    expected = torch.cat([longer * found["H"], found["L"]], dim=1) / (longer**2 + 1) ** 0.5
    torch.testing.assert_close(found["H+L"], expected)


def test_a_validation_evaluates_the_monitored_heads_too() -> None:
    seen: list[Tensor] = []

    def evaluate(embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        seen.append(embeddings)
        return {"h_ap": embeddings.abs().sum().item()}

    def evaluate_further(embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        assert torch.equal(embeddings, seen[0])
        return {"level0/nmi": 0.25, "level1/nmi": 0.5}

    further: Any = {"evaluate_further": evaluate_further}
    module = learner(evaluate=evaluate, monitor="heads/H+L/h_ap", head_sets=["H+L"], **further)
    plain = {"num_sanity_val_steps": 0, "val_check_interval": 1, "check_val_every_n_epoch": None}
    trainer = small_trainer(1, limit_val_batches=1, **plain)
    trainer.fit(module, Batches(), DataLoader([next(iter(Batches()))], batch_size=None))
    assert [tuple(own.shape) for own in seen] == [(6, 8), (6, 8)]
    logged = trainer.callback_metrics
    assert logged["val/heads/H+L/h_ap"] == logged["H-AP"] == pytest.approx(seen[1].abs().sum().item())
    assert (logged["val/level0/nmi"], logged["val/level1/nmi"], logged["NMI"]) == (0.25, 0.5, 0.25)
    assert trainer.progress_bar_metrics.keys() >= {"loss", "H-AP", "NMI"}


@pytest.mark.first_cases(1)
@pytest.mark.pipeline
@pytest.mark.parametrize("settings", [{}, {"gradient_cache": 4}])
def test_a_compiled_network_trains_alike_and_leaves_the_same_checkpoint(settings: dict[str, Any]) -> None:
    torch._dynamo.reset()
    plain, seen = fit(learner(**settings), 3).states, []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    compiled = fit(learner(compiled={"backend": backend}, **settings), 3, Averaging(0.9)).states
    assert seen
    for state, expected in zip(compiled, plain, strict=True):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)


def test_a_validation_does_not_compile() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise AssertionError

    module = learner(compiled={"backend": backend})
    images = next(iter(Batches()))[0]
    expected = module.model(images)
    assert all(torch.equal(rows, expected[head]) for head, rows in module.embed_images(images).items())
