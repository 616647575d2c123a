from collections.abc import Callable
from functools import partial
from typing import Any

import metric_oracles as oracles
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from dml.metrics.binary import (
    average_precision,
    count_positives,
    map_at_k,
    map_at_r,
    mmp_at_5,
    mp_at_k,
    positive_ranks,
    r_precision,
    recall_at_k,
    trapezoid_ap,
)

Metric = Callable[[Tensor], Tensor]
PAIRS: list[tuple[Metric, Callable[[list[bool]], float]]] = [
    (average_precision, oracles.average_precision),
    (map_at_r, oracles.map_at_r),
    (r_precision, oracles.r_precision),
    (trapezoid_ap, oracles.trapezoid_ap),
    (mmp_at_5, oracles.mmp_at_5),
    *[(lambda ranks, k=k: recall_at_k(ranks, k), lambda row, k=k: oracles.recall(row, k)) for k in (1, 3, 50)],
    *[(lambda ranks, k=k: map_at_k(ranks, k), lambda row, k=k: oracles.map_at_k(row, k)) for k in (1, 3, 50)],
    *[(lambda ranks, k=k: mp_at_k(ranks, k), lambda row, k=k: oracles.mp_at_k(row, k)) for k in (1, 5, 10)],
]
RANKINGS = hnp.arrays(np.bool_, st.tuples(st.integers(0, 6), st.integers(1, 20)))


@pytest.mark.parametrize(("metric", "oracle"), PAIRS)
@given(RANKINGS)
def test_agrees_with_its_definition(metric: Metric, oracle: Callable[[list[bool]], float], relevant: Any) -> None:
    values = metric(positive_ranks(torch.from_numpy(relevant)))
    assert values.dtype == torch.float64
    assert values.shape == (len(relevant),)
    for row, value in zip(relevant.tolist(), values.tolist(), strict=True):
        if any(row):
            assert value == pytest.approx(oracle(row), abs=1e-12)


@given(RANKINGS)
def test_ranks_are_those_of_the_relevant_items(relevant: Any) -> None:
    ranks = positive_ranks(torch.from_numpy(relevant))
    found = [[int(rank) for rank in row if rank < np.inf] for row in ranks.tolist()]
    assert found == [[place for place, hit in enumerate(row, 1) if hit] for row in relevant.tolist()]
    assert count_positives(ranks).tolist() == [sum(row) for row in relevant.tolist()]
    assert ranks.shape[1] == max((sum(row) for row in relevant.tolist()), default=0)


@pytest.mark.parametrize(
    "metric",
    [average_precision, trapezoid_ap, map_at_r, r_precision, mmp_at_5, partial(map_at_k, k=3), partial(mp_at_k, k=3)],
)
@pytest.mark.parametrize("columns", [0, 3])
def test_without_positives_there_is_no_value(metric: Metric, columns: int) -> None:
    ranks = torch.full((2, columns), torch.inf, dtype=torch.float64)
    assert metric(ranks).isnan().all()
    assert recall_at_k(ranks, 5).tolist() == [0, 0]


@pytest.mark.parametrize(("metric", "oracle"), PAIRS)
def test_a_perfect_ranking_scores_one(metric: Metric, oracle: Any) -> None:
    relevant = torch.arange(9) < torch.tensor([[1], [4], [9]])
    assert metric(positive_ranks(relevant)).tolist() == [1, 1, 1]


def test_mp_at_k_of_roxford() -> None:
    """revisitop's mP@1, 5 and 10 of five positives at the ranks 1, 2, 4, 6 and 8, and of three at 1, 3 and 6."""
    ranks = torch.tensor([[1, 2, 4, 6, 8], [1, 3, 6, torch.inf, torch.inf]])
    assert [mp_at_k(ranks, k).tolist() for k in (1, 5, 10)] == [[1, 1], [0.6, 0.4], [0.625, 0.5]]


def test_padding_changes_nothing() -> None:
    ranks = positive_ranks(torch.from_numpy(np.random.default_rng(0).random((50, 30)) < 0.2))
    padded = torch.nn.functional.pad(ranks, (0, 11), value=torch.inf)
    for metric, _ in PAIRS:
        torch.testing.assert_close(metric(padded), metric(ranks), equal_nan=True, atol=1e-14, rtol=0)


@pytest.mark.parametrize("metric", [map_at_r, r_precision, mmp_at_5])
@given(RANKINGS)
def test_ranks_beyond_r_may_be_missing(metric: Callable[..., Tensor], relevant: Any) -> None:
    """With their number, and however many columns are padded: to the digit."""
    ranks = positive_ranks(torch.from_numpy(relevant))
    counts = count_positives(ranks)
    known = ranks.where(ranks <= counts[:, None], torch.inf)
    padded = torch.cat([known, torch.full((len(ranks), 7), torch.inf, dtype=torch.float64)], dim=1)
    for some in (known, padded):
        torch.testing.assert_close(metric(some, counts), metric(ranks), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0, 2, 5], 0.6777777777777777),
        ([0, 1, 3, 5, 7], 0.7879761904761906),
        ([0, 3], 0.7083333333333333),
        ([0, 2], 0.7916666666666666),
    ],
)
def test_trapezoids_of_revisitop(places: list[int], expected: float) -> None:
    """Values of its code, whose ranks begin with 0."""
    ranks = torch.tensor([places], dtype=torch.float64) + 1
    assert trapezoid_ap(ranks).item() == pytest.approx(expected, abs=1e-9)


def test_modified_mean_precision_of_uned() -> None:
    ranked = [[1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0]]
    values = mmp_at_5(positive_ranks(torch.tensor(ranked, dtype=torch.bool)), torch.tensor([2, 3, 8, 1]))
    assert values.tolist() == pytest.approx([0.5, 0.6666666666666666, 0.6, 0.0], abs=1e-9)
    assert values.mean().item() == pytest.approx(0.44166666666666665, abs=1e-9)
