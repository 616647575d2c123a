from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, Trainer
from syncs import Syncs
from test_module import Batches, fit, learner
from torch import Tensor, nn
from trainers import small_trainer

from dml.losses.rll import RankedListLoss
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.checkpoints import AtomicCheckpointIO, LastCheckpoint
from dml.training.callbacks.process_state import StepSeed
from dml.training.callbacks.progress import Progress
from dml.training.checkpoints import read_checkpoint
from dml.training.loggers import History
from dml.training.module import DivergenceCheck, MetricLearner

pytestmark = pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")


class InfiniteAt(RankedListLoss):
    """Infinite at one step, with finite gradients: the weights alone wouldn't tell."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.steps_left = step

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.steps_left -= 1
        value = super().forward(embeddings, labels)
        return value + torch.inf if self.steps_left == -1 else value


def infinite_learner(step: int) -> MetricLearner:
    module = learner()
    module.losses["H"] = InfiniteAt(step)
    return module


class Counter(Callback):
    """Counts, for each step from its batch's transfer to its end, what would wait for a GPU."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.syncs = Syncs()
        self.syncs.__enter__()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.syncs.__exit__(None, None, None)
        self.steps.append(self.syncs.seen)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_step_never_waits_for_the_gpu(averaged: bool, tmp_path: Path) -> None:
    counter = Counter()
    averaging: list[Callback] = [Averaging(0.9)] if averaged else []
    settings = {"logger": [History(tmp_path / "metrics.csv")], "enable_progress_bar": True, "log_every_n_steps": 5}
    trainer = small_trainer(9, callbacks=[StepSeed(3), *averaging, Progress(), counter], **settings)
    trainer.fit(learner(), Batches())
    for step, seen in enumerate(counter.steps, start=1):
        # what is logged has to be known
        assert bool(seen) == (step % 5 == 0), (step, seen)


@pytest.mark.parametrize(("every", "noticed_at"), [(1, 3), (4, 4), (100, 9)])
def test_an_infinite_loss_stops_the_run_in_a_step_that_is_logged(every: int, noticed_at: int) -> None:
    module = infinite_learner(2)
    with pytest.raises(InputError, match=r"^step 2: the loss of head H became NaN or infinite under InfiniteAt; the l"):
        fit(module, 9, log_every_n_steps=every)
    assert module.global_step == noticed_at


def test_no_checkpoint_outlives_a_loss_that_was_infinite(tmp_path: Path) -> None:
    settings = {"enable_checkpointing": True, "default_root_dir": tmp_path, "plugins": [AtomicCheckpointIO()]}
    with pytest.raises(InputError, match=r"^step 3: the loss of head H"):
        fit(infinite_learner(3), 9, LastCheckpoint(every_n_steps=2), **settings)
    assert read_checkpoint(RunFolder(tmp_path).last_checkpoint)["global_step"] == 2


def test_the_first_step_that_was_not_finite_is_told_once() -> None:
    check, losses = DivergenceCheck(), nn.ModuleDict({"A": RankedListLoss(), "B": RankedListLoss()})
    good = {"A": torch.ones(2, 3), "B": torch.ones(2, 3)}
    bad = good | {"B": torch.full((2, 3), torch.nan)}
    check.add_step(0, losses, good, {"A": torch.tensor(1.0), "B": torch.tensor(1.0)})
    check.read()
    check.add_step(1, losses, bad, {"A": torch.tensor(1.0), "B": torch.tensor(torch.nan)})
    check.add_step(2, losses, good, {"A": torch.tensor(torch.inf), "B": torch.tensor(1.0)})
    with pytest.raises(InputError, match=r"^step 1: the embeddings of head B"):
        check.read()
    check.read()
