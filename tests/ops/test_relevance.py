import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dml.ops.relevance import level_counts, power_relevance, shared_levels, weighted_ap_relevance
from dml.runtime.errors import InputError

TREES = st.integers(1, 4).flatmap(
    lambda depth: st.lists(st.integers(0, 7), min_size=2, max_size=12).map(
        lambda fine: [[leaf >> level for level in range(depth)] for leaf in fine]
    )
)


def average_precision(relevant: list[bool]) -> float:
    """Of a ranking, nearest first: the mean over the positives of the share of positives up to each."""
    precisions = [sum(relevant[: rank + 1]) / (rank + 1) for rank, hit in enumerate(relevant) if hit]
    return sum(precisions) / len(precisions)


def hierarchical_average_precision(relevance: list[float]) -> float:
    """H-AP of a ranking, nearest first."""
    total = 0.0
    for rank, relevance_of_item in enumerate(relevance):
        total += sum(min(relevance_of_item, earlier) for earlier in relevance[: rank + 1]) / (rank + 1)
    return total / sum(relevance)


def look_up_levels(table: Tensor, levels: Tensor) -> list[float]:
    return [float(table[0, level]) for level in levels[0]]


def test_levels_are_columns_shared_with_the_query() -> None:
    labels = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]])
    assert shared_levels(labels[:2], labels).tolist() == [[3, 3, 2, 1, 0], [3, 3, 2, 1, 0]]
    assert shared_levels(labels[4:], labels).tolist() == [[0, 0, 0, 0, 3]]


def test_counts_leave_out_what_is_not_in_the_list() -> None:
    levels = torch.tensor([[-1, 2, 1, 1, 0], [0, 0, 0, -1, -1]])
    assert level_counts(levels, 2).tolist() == [[1, 2, 1], [3, 0, 0]]


@pytest.mark.parametrize(
    ("alpha", "weights"), [(1.0, [0, 1 / 3, 2 / 3, 1]), (2.0, [0, 1 / 9, 4 / 9, 1]), (0.0, [0, 1, 1, 1])]
)
def test_eq_4_shares_a_levels_weight_among_its_items(alpha: float, weights: list[float]) -> None:
    counts = torch.tensor([[7.0, 3.0, 2.0, 4.0], [5.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    expected = torch.tensor(weights, dtype=torch.float64) / torch.tensor([[7, 3, 2, 4], [5, 1, 1, 2]])
    torch.testing.assert_close(power_relevance(counts, alpha), expected)


def test_relevance_of_table_6_by_hand() -> None:
    counts = torch.tensor([[5.0, 2.0, 3.0]], dtype=torch.float64)
    # 5 items share a level or more, 3 of them both
    assert weighted_ap_relevance(counts, [0.7, 0.3]).tolist() == [pytest.approx([0, 0.3 / 5, 0.3 / 5 + 0.7 / 3])]
    assert weighted_ap_relevance(counts).tolist() == [pytest.approx([0, 0.5 / 5, 0.5 / 5 + 0.5 / 3])]


def test_refuses_another_number_of_weights() -> None:
    with pytest.raises(InputError, match="3 weights for 2 levels"):
        weighted_ap_relevance(torch.ones(1, 3), [0.2, 0.3, 0.5])


@given(fine=st.lists(st.booleans(), min_size=1, max_size=12).filter(any), alpha=st.sampled_from([0.5, 1.0, 5.0]))
def test_with_one_level_h_ap_is_ap(fine: list[bool], alpha: float) -> None:
    levels = torch.tensor([fine]).long()
    relevance = look_up_levels(power_relevance(level_counts(levels, 1).double(), alpha), levels)
    assert hierarchical_average_precision(relevance) == pytest.approx(average_precision(fine))


@given(labels=TREES, weights=st.lists(st.floats(0.1, 1.0), min_size=4, max_size=4))
def test_with_table_6_h_ap_is_the_weighted_sum_of_aps(labels: list[list[int]], weights: list[float]) -> None:
    query, ranking = torch.tensor(labels[:1]), torch.tensor(labels[1:])
    depth = ranking.shape[1]
    levels = shared_levels(query, ranking)
    relevance = look_up_levels(weighted_ap_relevance(level_counts(levels, depth).double(), weights[:depth]), levels)
    relevant = [(ranking[:, column] == query[0, column]).tolist() for column in range(depth)]
    defined = [column for column in range(depth) if any(relevant[column])]
    if not defined:
        assert relevance == [0.0] * len(ranking)
        return
    expected = sum(weights[column] * average_precision(relevant[column]) for column in defined)
    share = sum(weights[column] for column in defined)
    assert hierarchical_average_precision(relevance) == pytest.approx(expected / share)
