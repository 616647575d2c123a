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
from dml.training.module import CpuCopy, DivergenceCheck, MetricLearner

pytestmark = pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")


class LateCopies:
    """Copies that arrive so many copies after they were asked for, as those from a GPU do."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.sent = 0

    def __call__(self, source: Tensor) -> CpuCopy:
        self.sent += 1
        return LateCopy(source, self, self.sent)


class LateCopy(CpuCopy):
    def __init__(self, source: Tensor, copies: LateCopies, number: int) -> None:
        super().__init__(source)
        self.copies, self.number = copies, number

    def is_done(self) -> bool:
        return self.copies.sent - self.number >= self.copies.delay


class InfiniteAt(RankedListLoss):
    """Infinite at one step, with finite gradients: the weights alone wouldn't tell."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.steps_left = step

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.steps_left -= 1
        value = super().forward(embeddings, labels)
        return value + torch.inf if self.steps_left == -1 else value


def late_learner(delay: float, infinite_at: int | None = None) -> MetricLearner:
    module = learner()
    module.divergence = DivergenceCheck(LateCopies(delay))
    if infinite_at is not None:
        module.losses["H"] = InfiniteAt(infinite_at)
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
    trainer.fit(late_learner(torch.inf), Batches())
    for step, seen in enumerate(counter.steps, start=1):
        # what is logged has to be known
        assert bool(seen) == (step % 5 == 0), (step, seen)


@pytest.mark.parametrize("delay", [0, 1, 3, torch.inf])
def test_a_late_answer_stops_the_run_all_the_same(delay: float) -> None:
    module = late_learner(delay, infinite_at=2)
    with pytest.raises(InputError, match=r"^step 2: the loss of head H became NaN or infinite under InfiniteAt; the l"):
        fit(module, 9)
    assert module.global_step == min(2 + delay, 9)


def test_no_checkpoint_outlives_a_loss_that_was_infinite(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^step 3: the loss of head H"):
        fit(
            late_learner(torch.inf, infinite_at=3),
            9,
            LastCheckpoint(every_n_steps=2),
            enable_checkpointing=True,
            default_root_dir=tmp_path,
            plugins=[AtomicCheckpointIO()],
        )
    assert read_checkpoint(RunFolder(tmp_path).last_checkpoint)["global_step"] == 2


def test_answers_are_read_in_order_and_once() -> None:
    check, losses = DivergenceCheck(LateCopies(1)), nn.ModuleDict({"A": RankedListLoss()})
    embeddings = {"A": torch.ones(2, 3)}
    check.add_step(0, losses, embeddings, {"A": torch.tensor(1.0)})
    check.add_step(1, losses, {"A": torch.full((2, 3), torch.nan)}, {"A": torch.tensor(torch.nan)})
    with pytest.raises(InputError, match=r"^step 1: the embeddings of head A"):
        check.wait_for_all()
    check.wait_for_all()


def test_a_copy_from_a_gpu_is_read_after_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def record(self, stream: str) -> None:
            calls.append(f"recorded on {stream}")

        def query(self) -> bool:
            return "waited" in calls

        def synchronize(self) -> None:
            calls.append("waited")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    monkeypatch.setattr(Tensor, "is_cuda", True)
    copy = CpuCopy(torch.tensor([True]))
    assert not copy.is_done()
    assert copy.wait().tolist() == [True]
    assert copy.is_done()
    assert calls == ["recorded on the stream of cpu", "waited"]
