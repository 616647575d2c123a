from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import ONE_HEAD, Here
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import ContrastiveLoss, FastAPLoss
from pytorch_metric_learning.reducers import MeanReducer
from syncs import Syncs
from torch import Tensor

from dml.losses.baselines import PairLoss
from dml.losses.memory import CrossBatchMemory
from dml.losses.rll import RankedListLoss
from dml.runtime.errors import InputError

SIZE = 4


def pair_loss() -> PairLoss:
    library = ContrastiveLoss(pos_margin=1, neg_margin=0.1, distance=CosineSimilarity(), reducer=MeanReducer())
    return PairLoss(library, miner=None, normalize=True)


def memory(size: int = 10, start: int = 0, **changes: Any) -> CrossBatchMemory:
    return CrossBatchMemory(pair_loss(), embedding_dim=SIZE, size=size, start=start, **changes)


def batch(seed: int, count: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, SIZE, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def by_hand(rows: Tensor, labels: Tensor, queue: list[tuple[Tensor, int]]) -> Tensor:
    """Each row's pairs with the other rows and with the queue."""
    pulled, pushed = [], []
    columns = [*zip(rows, labels.tolist(), strict=True), *queue]
    for i, anchor in enumerate(rows):
        for j, (other, label) in enumerate(columns):
            cosine = F.normalize(anchor, dim=0) @ F.normalize(other, dim=0)
            if label != labels[i]:
                pushed.append(F.relu(cosine - 0.1))
            elif i != j:
                pulled.append(F.relu(1 - cosine))
    if not pulled:
        return rows.sum() * 0
    return torch.stack(pulled).mean() + (torch.stack(pushed).mean() if pushed else 0)


@pytest.mark.parametrize("size", [3, 8, 10, 100])
def test_equals_the_loss_over_batch_and_queue(size: int) -> None:
    loss, queue = memory(size), []
    for step in range(6):
        embeddings, labels = batch(step)
        ours, theirs = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
        value, expected = loss(ours, labels), by_hand(theirs, labels, queue)
        torch.testing.assert_close(value, expected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        queue = (queue + list(zip(embeddings, labels.tolist(), strict=True)))[-size:]
        assert sorted(loss.labels[: len(queue)].tolist()) == sorted(label for _, label in queue)


def test_the_memory_starts_after_its_warm_up() -> None:
    loss, plain = memory(start=2), pair_loss()
    for step in range(3):
        assert loss(*batch(step)) == plain(*batch(step))
    assert int(loss.queued) == 4
    assert loss(*batch(3)) != plain(*batch(3))


def test_the_memory_carries_no_gradient() -> None:
    loss = memory()
    first, second = batch(0)[0].requires_grad_(), batch(1)[0].requires_grad_()
    loss(first, batch(0)[1])
    loss(second, batch(1)[1]).backward()
    assert first.grad is None
    assert second.grad is not None
    assert not loss.embeddings.requires_grad
    assert list(loss.parameters()) == []


def test_resumes_exactly() -> None:
    whole, stopped, resumed = memory(), memory(), memory()
    for step in range(4):
        whole(*batch(step))
        stopped(*batch(step))
    resumed.load_state_dict(stopped.state_dict())
    for step in range(4, 8):
        assert resumed(*batch(step)) == whole(*batch(step))
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in resumed.state_dict().items())


def test_evaluation_leaves_the_memory_alone() -> None:
    loss = memory()
    loss(*batch(0))
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    loss.eval()
    loss(*batch(1))
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


def test_refuses_a_loss_without_a_gallery() -> None:
    with pytest.raises(InputError, match="FastAPLoss compares"):
        CrossBatchMemory(PairLoss(FastAPLoss(), miner=None, normalize=True), embedding_dim=SIZE)
    with pytest.raises(InputError, match="RankedListLoss compares"):
        CrossBatchMemory(RankedListLoss(), embedding_dim=SIZE)
    with pytest.raises(InputError, match="size=0"):
        memory(size=0)


class Cosines(torch.nn.Module):
    """A pair loss that doesn't ask what its numbers are."""

    takes_gallery = True

    def forward(self, embeddings: Tensor, labels: Tensor, **gallery: Tensor) -> Tensor:
        return (embeddings @ gallery.get("gallery", embeddings).T).mean()


def test_the_memory_never_waits_for_the_gpu() -> None:
    loss, resumed = (CrossBatchMemory(Cosines(), embedding_dim=SIZE, size=10, start=2) for _ in range(2))
    with Syncs() as syncs:
        for step in range(6):
            loss(*batch(step))
    assert syncs.seen == []
    assert (int(loss.steps), int(loss.queued)) == (6, 16)
    resumed.load_state_dict(loss.state_dict())
    resumed(*batch(6))  # which reads the counters once
    with Syncs() as syncs:
        resumed(*batch(7))
    assert syncs.seen == []


def test_a_run_that_ends_before_the_memory_is_used_says_so(
    tmp_path: Path, here: Here, small_emoji: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [*ONE_HEAD, f"dataset.root={small_emoji}", "trainer.max_steps=2", "loss=xbm"]
    here("train", *given, "loss.start=2", f"hydra.run.dir={tmp_path}")
    assert "memory   loss.start=2: the run ends before the memory is used" in capfd.readouterr().out
