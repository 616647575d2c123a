from collections.abc import Callable
from typing import Any

import metric_oracles as oracles
import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from dml.metrics.binary import average_precision, positive_ranks
from dml.metrics.graded import asi, count_by_level, h_ap, ndcg
from dml.ops.relevance import power_relevance, weighted_ap_relevance

DEPTHS = st.integers(1, 4)
RANKINGS = DEPTHS.flatmap(
    lambda depth: st.tuples(
        st.just(depth),
        hnp.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 25)), elements=st.integers(0, depth)),
    )
)


def ranks_at(levels: Any, depth: int) -> list[Tensor]:
    """Rankings (Q, N) of levels -> the ranks at each level."""
    return [positive_ranks(torch.as_tensor(levels) == level) for level in range(1, depth + 1)]


def relevance_of(ranks: list[Tensor], alpha: float) -> Tensor:
    return power_relevance(count_by_level(ranks).double(), alpha)


def assert_equal(values: Tensor, rankings: Any, oracle: Callable[[list[int]], float]) -> None:
    assert values.dtype == torch.float64
    for row, value in zip(rankings.tolist(), values.tolist(), strict=True):
        if any(row):
            assert value == pytest.approx(oracle(row), abs=1e-12)
        else:
            assert np.isnan(value)


@given(RANKINGS)
def test_numbers_are_those_of_each_level(given_: tuple[int, Any]) -> None:
    depth, levels = given_
    expected = [[0, *((row == level).sum() for level in range(1, depth + 1))] for row in levels]
    assert count_by_level(ranks_at(levels, depth)).tolist() == expected


@given(RANKINGS, st.sampled_from([0.0, 0.5, 1.0, 3.0]))
@example((3, np.array([[1, 3, 2, 0, 3, 1, 3, 3, 2, 3], [2, 1, 0, 3, 3, 3, 1, 3, 3, 3]])), 0.0)
@examples(200)
def test_h_ap_agrees_with_its_definition(given_: tuple[int, Any], alpha: float) -> None:
    depth, levels = given_
    ranks = ranks_at(levels, depth)
    values = h_ap(ranks, relevance_of(ranks, alpha))
    assert_equal(values, levels, lambda row: oracles.h_ap(oracles.power_relevance(row, depth, alpha)))


@given(RANKINGS, st.sampled_from([(ndcg, oracles.ndcg), (asi, oracles.asi)]))
def test_ndcg_and_asi_agree_with_their_definitions(given_: tuple[int, Any], pair: Any) -> None:
    depth, levels = given_
    metric, oracle = pair
    assert_equal(metric(ranks_at(levels, depth)), levels, oracle)


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 5), st.integers(1, 20))), st.sampled_from([0.5, 1.0, 5.0]))
def test_with_one_level_h_ap_is_ap(relevant: Any, alpha: float) -> None:
    ranks = positive_ranks(torch.from_numpy(relevant))
    torch.testing.assert_close(
        h_ap([ranks], relevance_of([ranks], alpha)), average_precision(ranks), equal_nan=True, atol=1e-12, rtol=0
    )


@given(RANKINGS, st.lists(st.floats(0.1, 1.0), min_size=4, max_size=4))
def test_with_table_6_h_ap_is_the_weighted_sum_of_aps(given_: tuple[int, Any], weights: list[float]) -> None:
    depth, levels = given_
    levels[:, 0] = depth  # a positive at every level, or some AP is undefined
    weights = [weight / sum(weights[:depth]) for weight in weights[:depth]]
    ranks = ranks_at(levels, depth)
    values = h_ap(ranks, weighted_ap_relevance(count_by_level(ranks).double(), weights))
    # weights are finest first: column i's positives share at least depth - i levels
    aps = [average_precision(positive_ranks(torch.from_numpy(levels >= depth - column))) for column in range(depth)]
    expected = sum(weight * ap for weight, ap in zip(weights, aps, strict=True))
    torch.testing.assert_close(values, expected, atol=1e-12, rtol=0)


@given(RANKINGS)
def test_a_perfect_ranking_scores_one(given_: tuple[int, Any]) -> None:
    depth, levels = given_
    levels[:, 0] = depth
    ranks = ranks_at(-np.sort(-levels, axis=1), depth)
    for value in (ndcg(ranks), asi(ranks)):
        torch.testing.assert_close(value, torch.ones_like(value))
    counts = torch.ones(len(levels), depth + 1, dtype=torch.float64)  # then finer is more relevant
    value = h_ap(ranks, power_relevance(counts, 1.0))
    torch.testing.assert_close(value, torch.ones_like(value))


def test_two_levels_as_relevant_as_each_other() -> None:
    """One item of level 1 at 1/2 and two of level 2 at 1/2: grouped by relevance, H-AP would come out as 2."""
    for levels in ([[2, 2, 1, 0]], [[1, 2, 2, 0]], [[2, 1, 2, 0]]):
        ranks = ranks_at(np.array(levels), 2)
        relevance = relevance_of(ranks, 1.0)
        assert relevance[0, 1] == relevance[0, 2] == 0.5
        assert h_ap(ranks, relevance).item() == pytest.approx(1.0)


def test_by_hand() -> None:
    """Levels 0, 2, 1: relevances 0, 1, 1/2."""
    ranks = ranks_at(np.array([[0, 2, 1]]), 2)
    assert h_ap(ranks, relevance_of(ranks, 1.0)).item() == pytest.approx((1 / 2 + (1 / 2 + 1 / 2) / 3) / 1.5)
    ideal = 3 / 1 + 1 / np.log2(3)
    assert ndcg(ranks).item() == pytest.approx((3 / np.log2(3) + 1 / 2) / ideal)
    assert asi(ranks).item() == pytest.approx((0 / 1 + 1 / 2) / 2)


@pytest.mark.parametrize("columns", [0, 2])
def test_without_positives_there_is_no_value(columns: int) -> None:
    ranks = [torch.full((3, columns), torch.inf, dtype=torch.float64)] * 2
    for value in (h_ap(ranks, relevance_of(ranks, 1.0)), ndcg(ranks), asi(ranks)):
        assert value.isnan().all()
