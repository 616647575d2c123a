import math

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
from dml.runtime.errors import InputError


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


def test_equals_the_librarys_where_that_groups_rightly() -> None:
    # as many classes as images a class, row by row
    embeddings, labels = draw_embeddings(9, 4).float(), torch.arange(9) // 3
    torch.testing.assert_close(SmoothAPLoss()(embeddings, labels), LibrarySmoothAPLoss()(embeddings, labels))


def test_gradcheck() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    assert torch.autograd.gradcheck(lambda x: SmoothAPLoss(0.3)(x, labels), draw_embeddings(6, 4).requires_grad_())


def test_refuses_a_temperature_of_0() -> None:
    with pytest.raises(InputError, match=r"temperature=0\.0"):
        SmoothAPLoss(0.0)
