import json
import math
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score

from dml.metrics.clustering import ami, nmi, pair_f1
from dml.runtime.errors import InputError

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "metrics.json").read_text())
CLUSTERINGS = [case["clustering"] for case in CASES if "clustering" in case]
partitions = st.integers(1, 25).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2))


def entropy(of: list[Any]) -> float:
    shares = [of.count(value) / len(of) for value in set(of)]
    return -sum(p * math.log(p) for p in shares)


def nmi_by_definition(assignment: list[int], labels: list[int], average: str) -> float:
    a, y = entropy(assignment), entropy(labels)
    shared = information(assignment, labels)
    mean = (a + y) / 2 if average == "arithmetic" else math.sqrt(a * y)
    if len(set(assignment)) == len(set(labels)) == 1:
        return 1.0
    return shared / mean if mean else 0.0


def information(assignment: Any, labels: Any) -> float:
    pairs = list(zip(assignment, labels, strict=True))
    return entropy(list(assignment)) + entropy(list(labels)) - entropy(pairs)


def f1_by_definition(assignment: list[int], labels: list[int]) -> float:
    pairs = list(combinations(range(len(labels)), 2))
    retrieved = {(i, j) for i, j in pairs if assignment[i] == assignment[j]}
    relevant = {(i, j) for i, j in pairs if labels[i] == labels[j]}
    if not retrieved and not relevant:
        return 1.0
    if not retrieved & relevant:
        return 0.0
    precision = len(retrieved & relevant) / len(retrieved)
    recall = len(retrieved & relevant) / len(relevant)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("case", CLUSTERINGS)
def test_vectors(case: dict[str, Any]) -> None:
    assignment, labels = torch.tensor(case["pred"]), torch.tensor(case["true"])
    assert nmi(assignment, labels) == pytest.approx(case["nmi"], abs=1e-12)
    assert pair_f1(assignment, labels) == pytest.approx(case["f1"], abs=1e-12)


@given(partitions, st.sampled_from(["arithmetic", "geometric"]))
def test_nmi_agrees_with_its_definition(pair: Any, average: Any) -> None:
    assignment, labels = pair
    found = nmi(np.array(assignment), np.array(labels), average)
    assert found == pytest.approx(nmi_by_definition(assignment, labels, average), abs=1e-9)


@given(partitions)
def test_pair_f1_agrees_with_its_definition(pair: Any) -> None:
    assignment, labels = pair
    found = pair_f1(torch.tensor(assignment), np.array(labels))
    assert found == pytest.approx(f1_by_definition(assignment, labels), abs=1e-12)


@pytest.mark.parametrize("metric", [nmi, ami, pair_f1])
@pytest.mark.parametrize("items", [[0, 0, 1, 1, 2, 2], [3, 3, 3, 3], list(range(40))])
def test_the_same_partition_under_other_names_is_perfect(metric: Any, items: list[int]) -> None:
    labels = torch.tensor(items)
    assert metric(70 - labels, labels) == pytest.approx(1.0)


@given(st.integers(2, 6).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n)] * 2)))
@examples(40)
def test_ami_takes_off_the_mean_over_all_orders(pair: Any) -> None:
    assignment, labels = pair
    expected = np.mean([information(order, labels) for order in permutations(assignment)])
    mean = (entropy(assignment) + entropy(labels)) / 2
    value = ami(np.array(assignment), np.array(labels))
    if mean - expected < 1e-9:  # the partitions are the same, or one is a single group
        assert value in (0.0, 1.0)
    else:
        assert value == pytest.approx((information(assignment, labels) - expected) / (mean - expected), abs=1e-9)


@given(partitions, st.sampled_from(["arithmetic", "geometric"]))
def test_ami_agrees_with_scikit_learn(pair: Any, average: Any) -> None:
    assignment, labels = np.array(pair[0]), np.array(pair[1])
    expected = adjusted_mutual_info_score(labels, assignment, average_method=average)
    assert ami(assignment, labels, average) == pytest.approx(expected, abs=1e-9)


def test_ami_of_many_classes_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 400, 3000)
    assignment = np.where(rng.random(3000) < 0.5, labels, rng.integers(0, 300, 3000))
    expected = adjusted_mutual_info_score(labels, assignment)
    assert ami(assignment, labels) == pytest.approx(expected, abs=1e-9)


def test_pair_f1_counts_billions_of_pairs() -> None:
    """100,000 items in one cluster, two classes: 1e10 ordered pairs are beyond 32 bits."""
    labels = np.arange(100_000) % 2
    pairs, right = 100_000 * 99_999, 2 * 50_000 * 49_999
    assert pair_f1(np.zeros(100_000, dtype=np.int32), labels.astype(np.int32)) == 2 * right / (pairs + right)


@pytest.mark.parametrize("metric", [nmi, ami])
def test_other_means_are_refused(metric: Any) -> None:
    with pytest.raises(InputError, match=r"average=max: must be arithmetic or geometric"):
        metric(np.array([0, 0, 1]), np.array([0, 1, 1]), average="max")
