"""Losses that are a mean over queries: the mean of their values for equal shares of the rows is that of the batch."""

import pytest
import torch
from every_loss import LOSSES, build
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from torch import Tensor, nn

from dml.losses.compose import AtLevel, WeightedSum
from dml.losses.happier import ClusterLoss, SmoothHierarchicalAPLoss
from dml.losses.loss_contract import loss_value, takes_queries
from dml.losses.recall_at_k import RecallAtKLoss
from dml.losses.regularizers import EmbeddingNorm
from dml.losses.rll import RankedListLoss
from dml.losses.smooth_ap import SmoothAPLoss
from dml.losses.triplet_semihard import TripletSemihardLoss
from dml.ops.pairs import ALL, own_entries, pair_masks

SIZE, CLASSES = 6, 4


def sharded_losses() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "rll": RankedListLoss(),
        "rll, both sides": RankedListLoss(detach_gallery=False, positive_temperature=3.0),
        "recall@k": RecallAtKLoss(),
        "recall@k, other settings": RecallAtKLoss((1, 3), 0.1, 0.5, count_query=False),
        "h-ap": SmoothHierarchicalAPLoss(),
        "h-ap, smooth": SmoothHierarchicalAPLoss(smooth_h_rank=True, include_query=False),
        "smooth-ap": SmoothAPLoss(),
        "cluster": ClusterLoss(CLASSES, SIZE),
        "sum": WeightedSum(
            {
                "sharded": AtLevel(RankedListLoss(), 1),
                "whole": TripletSemihardLoss(),
                "norm": EmbeddingNorm(),
            },
            {"sharded": 0.7, "whole": 0.2, "norm": 0.1},
        ),
    }


def value_and_gradient(loss: nn.Module, rows: Tensor, labels: Tensor, queries: slice = ALL) -> tuple[Tensor, Tensor]:
    leaf = rows.clone().requires_grad_()
    value = loss_value(loss, leaf, labels, None, queries)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", sharded_losses())
@examples(20)
@given(
    seed=st.integers(0, 2**31),
    classes=st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=5),
    shares=st.integers(2, 4),
)
def test_the_mean_over_shares_is_the_loss(name: str, seed: int, classes: list[int], shares: int) -> None:
    fine = torch.tensor(classes * shares)  # every number of rows that can be shared, with rows without positives
    fine = fine[torch.randperm(len(fine), generator=torch.Generator().manual_seed(seed))]
    labels, loss = torch.stack([fine, fine // 2], dim=1), sharded_losses()[name].double()
    rows = draw_embeddings(len(fine), SIZE, seed)
    size = len(fine) // shares
    parts = [value_and_gradient(loss, rows, labels, slice(first, first + size)) for first in range(0, len(fine), size)]
    value, gradient = value_and_gradient(loss, rows, labels)
    torch.testing.assert_close(sum(part[0] for part in parts) / shares, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sum(part[1] for part in parts) / shares, gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shares", [2, 3])
def test_each_virtual_item_is_a_query_of_one_share(shares: int) -> None:
    labels = torch.tensor([0, 1, 0, 0, 1, 2, 2, 0, 3, 2, 2, 1])  # 15 pairs, which 2 shares can't share equally
    rows = draw_embeddings(12, SIZE)
    size = 12 // shares
    queries = [slice(first, first + size) for first in range(0, 12, size)]
    parts = [value_and_gradient(RecallAtKLoss(mixup=True), rows, labels, part) for part in queries]
    value, gradient = value_and_gradient(RecallAtKLoss(mixup=True), rows, labels)
    torch.testing.assert_close(sum(part[0] for part in parts) / shares, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(sum(part[1] for part in parts) / shares, gradient, rtol=1e-9, atol=1e-12)


def test_masks_of_queries_are_rows_of_those_of_the_batch() -> None:
    labels = torch.tensor([0, 0, 1, 0, 2, 1])
    for masks, whole in zip(pair_masks(labels, slice(2, 5)), pair_masks(labels), strict=True):
        assert torch.equal(masks, whole[2:5])
    assert torch.equal(own_entries(torch.eye(6)[2:5], slice(2, 5)), torch.ones(3))


def test_a_subclass_without_queries_is_computed_whole() -> None:
    class Doubled(RankedListLoss):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * super().forward(embeddings, labels)

    rows, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    assert loss_value(Doubled(), rows, labels, None, slice(0, 2)) == 2 * RankedListLoss()(rows, labels)
    assert not takes_queries(AtLevel(Doubled(), 0))


def test_these_losses_of_the_configuration_take_queries() -> None:
    built = {name: build(name) for name in LOSSES}
    assert sorted(name for name, loss in built.items() if getattr(loss, "takes_queries", False)) == [
        "cluster",
        "h_ap",
        "happier",
        "happier_f",
        "happier_f_release",
        "matryoshka",
        "recall_at_k",
        "rll",
        "rll_coarse",
        "rll_levels",
        "roadmap",
        "smooth_ap",
    ]
