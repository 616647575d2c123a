import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from pytorch_metric_learning.losses import SmoothAPLoss as LibrarySmoothAPLoss
from torch import Tensor

from dml.losses.smooth_ap import SmoothAPLoss
from dml.ops.relevance import power_relevance


def by_hand(embeddings: Tensor, labels: list[int], temperature: float) -> float:
    """Eq. 4-6, a query and an item at a time."""
    similarities = (F.normalize(embeddings, dim=1) @ F.normalize(embeddings, dim=1).T).tolist()

    def rank(similar: list[float], i: int, items: list[int]) -> float:
        gaps = [(similar[i] - similar[j]) / temperature for j in items if j != i]
        return 1 + sum(1 / (1 + math.exp(min(gap, 700))) for gap in gaps)

    everyone, total = list(range(len(labels))), 0.0
    for query, similar in enumerate(similarities):
        positives = [i for i in everyone if labels[i] == labels[query]]
        if positives != [query]:
            ratios = [rank(similar, i, positives) / rank(similar, i, everyone) for i in positives]
            total += 1 - sum(ratios) / len(positives)
    return total / len(labels)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
)
@examples(50)
def test_equals_a_loop_over_items(labels: list[int], seed: int, temperature: float) -> None:
    embeddings = draw_embeddings(len(labels), 4, seed)
    value = SmoothAPLoss(temperature)(embeddings, torch.tensor(labels))
    assert value.item() == pytest.approx(by_hand(embeddings, labels, temperature), abs=1e-9)


def h_ap_by_hand(embeddings: Tensor, labels: Tensor, temperature: float, alpha: float) -> float:
    """HAPPIER, Eq. 1-4, with the sigmoid in rank and H-rank for all items j, one pair of items at a time."""
    unit, (size, depth) = F.normalize(embeddings, dim=1), labels.shape
    total = 0.0
    for query in range(size):
        levels = [int((labels[query] == labels[item]).sum()) for item in range(size)]
        if not any(level for item, level in enumerate(levels) if item != query):
            continue
        rel = [(level / depth) ** alpha / levels.count(level) if level else 0.0 for level in levels]
        cosines, h_ap = (unit @ unit[query]).tolist(), 0.0
        for k in range(size):
            others = [j for j in range(size) if j != k]
            before = {j: 1 / (1 + math.exp(min((cosines[k] - cosines[j]) / temperature, 700))) for j in others}
            h_rank = rel[k] + sum(min(rel[j], rel[k]) * before[j] for j in others)
            h_ap += h_rank / (1 + sum(before.values())) if levels[k] else 0.0
        total += 1 - h_ap / sum(rel)
    return total / size


@given(
    leaves=st.lists(st.integers(0, 9), min_size=2, max_size=10),
    depth=st.integers(1, 4),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    alpha=st.sampled_from([1.0, 3.0]),
)
@examples(50)
def test_a_relevance_makes_it_h_ap_with_sigmoids_in_both_ranks(
    leaves: list[int], depth: int, seed: int, temperature: float, alpha: float
) -> None:
    labels = torch.tensor([[leaf >> level for level in range(depth)] for leaf in leaves])
    embeddings = draw_embeddings(len(leaves), 4, seed)
    value = SmoothAPLoss(temperature, partial(power_relevance, alpha=alpha))(embeddings, labels)
    assert value.item() == pytest.approx(h_ap_by_hand(embeddings, labels, temperature, alpha), abs=1e-9)


def test_the_relevance_of_one_level_changes_nothing() -> None:
    labels, embeddings = torch.arange(12) % 5, draw_embeddings(12, 4)
    torch.testing.assert_close(
        SmoothAPLoss(0.1, power_relevance)(embeddings, labels), SmoothAPLoss(0.1)(embeddings, labels)
    )


def test_equals_the_librarys_where_that_groups_rightly() -> None:
    # as many classes as images a class, row by row
    embeddings, labels = draw_embeddings(9, 4).float(), torch.arange(9) // 3
    torch.testing.assert_close(SmoothAPLoss()(embeddings, labels), LibrarySmoothAPLoss()(embeddings, labels))


@pytest.mark.parametrize("relevance", [None, power_relevance])
def test_gradcheck(relevance: Callable[[Tensor], Tensor] | None) -> None:
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [1, 0], [2, 1]])
    loss = SmoothAPLoss(0.3, relevance)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), draw_embeddings(6, 4).requires_grad_())
