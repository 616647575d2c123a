"""Batches of several data sets: shares, UDON's rule against a loop, and the order of images in each data set."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dml.runtime.errors import InputError
from dml.samplers.class_balanced import ClassBalancedSampler
from dml.samplers.many import ManySetsSampler, divide

SIZES = {"b": 12, "a": 6, "c": 4}  # classes of five images
DOMAIN = np.repeat([*SIZES], [5 * classes for classes in SIZES.values()])
LABELS = np.arange(len(DOMAIN)) // 5
ORDER = np.random.default_rng(0).permutation(len(DOMAIN))
DOMAIN, LABELS = DOMAIN[ORDER], LABELS[ORDER]


def make(**settings: Any) -> ManySetsSampler:
    return ManySetsSampler(LABELS, 4, 2, domain=DOMAIN, **settings)


def epoch(sampler: ManySetsSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


def count_sets(batches: list[list[int]]) -> dict[str, int]:
    """How many batches, each of one data set, are of each."""
    names = [{*DOMAIN[batch].tolist()} for batch in batches]
    assert all(len(name) == 1 for name in names)
    return {name: names.count({name}) for name in SIZES}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ("equal", {"a": 4, "b": 4, "c": 4}),
        ("loss", {"a": 4, "b": 4, "c": 4}),
        ("size", {"a": 3, "b": 7, "c": 2}),  # 3.27, 6.55, 2.18 of 12
        ({"a": 1, "b": 0, "c": 5}, {"a": 2, "b": 0, "c": 10}),
        ({"a": 0.25, "b": 0.25, "c": 0.5}, {"a": 3, "b": 3, "c": 6}),
    ],
)
def test_an_epoch_has_the_shares(shares: Any, expected: dict[str, int]) -> None:
    sampler = make(shares=shares, batches_per_epoch=12)
    for number in (0, 1, 7):
        batches = epoch(sampler, number)
        assert count_sets(batches) == expected
    orders = [[str(DOMAIN[batch[0]]) for batch in epoch(sampler, number)] for number in range(2)]
    assert orders[0] != orders[1]


def test_each_data_set_has_the_batches_of_its_own_sampler() -> None:
    """So all images of a class are used before one repeats, from one epoch to the next."""
    sampler = make(shares={"a": 1, "b": 2, "c": 1}, batches_per_epoch=8)
    drawn = [batch for number in range(5) for batch in epoch(sampler, number)]
    for name in SIZES:
        rows = np.flatnonzero(name == DOMAIN)
        own = [batch for batch in drawn if DOMAIN[batch[0]] == name]
        expected = ClassBalancedSampler(LABELS[rows], 4, 2).slice_batches(0, len(own))
        assert own == [rows[batch].tolist() for batch in expected]


def test_a_mixed_batch_divides_its_classes() -> None:
    sampler = ManySetsSampler(LABELS, 8, 2, mixed=True, shares={"a": 1, "b": 2, "c": 1}, domain=DOMAIN)
    for batch in epoch(sampler, 3):
        assert [(name, len([*rows])) for name, rows in groupby(DOMAIN[batch].tolist())] == [
            ("a", 4),
            ("b", 8),
            ("c", 4),
        ]
    assert len(sampler) == 7  # 110 images, 16 a batch
    drawn = [row for number in range(2) for batch in epoch(sampler, number) for row in batch if DOMAIN[row] == "c"]
    assert len({*drawn[:16]}) == 16  # four of the five images of each class, before one repeats


def test_auto_takes_what_each_data_set_has() -> None:
    sampler = ManySetsSampler(LABELS, "auto", 2, domain=DOMAIN)
    sizes = {str(DOMAIN[batch[0]]): len(batch) for batch in epoch(sampler, 0)}
    assert sizes == {name: 2 * classes for name, classes in SIZES.items()}
    assert (sampler.classes_per_batch, sampler.images_per_class) == (4, 2)


def udon(weights: list[float], losses: dict[int, list[float]]) -> list[float]:
    """The rule in a loop: mean losses over their sum; who wasn't drawn keeps its weight; then all are rescaled."""
    means = {number: sum(values) / len(values) for number, values in losses.items()}
    changed = []
    for number, weight in enumerate(weights):
        changed.append(means[number] / sum(means.values()) if number in means else weight)
    return [weight / sum(changed) for weight in changed]


@examples(30)
@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), st.integers(3, 9), st.integers(0, 9))
def test_the_shares_follow_the_losses_as_in_udon(scales: list[float], length: int, seed: int) -> None:
    sampler = make(shares="loss", batches_per_epoch=length, seed=seed)
    rng, names = np.random.default_rng(seed), sorted(SIZES)
    weights, drawn = [1 / 3] * 3, dict.fromkeys(names, 0)
    for number in range(4):
        losses: dict[int, list[float]] = {}
        for step, batch in enumerate(epoch(sampler, number)):
            place = names.index(DOMAIN[batch[0]])
            rows = np.flatnonzero(DOMAIN[batch[0]] == DOMAIN)
            expected = next(
                iter(ClassBalancedSampler(LABELS[rows], 4, 2, seed=seed).slice_batches(n := drawn[names[place]], n + 1))
            )
            assert batch == rows[expected].tolist()  # no batch is skipped or repeated, whatever the shares were
            drawn[names[place]] += 1
            losses.setdefault(place, []).append(loss := scales[place] * rng.uniform(0.5, 1.5))
            sampler.add_loss(batch[-1], loss, number * length + step + 1)
        weights = udon(weights, losses)
        np.testing.assert_allclose(sampler.state[0], weights, rtol=1e-12)
        counts = count_sets(epoch(sampler, number + 1))
        assert [counts[name] for name in names] == divide(length, np.array(weights)).tolist()


def test_losses_of_zero_leave_the_shares() -> None:
    sampler = make(shares="loss", batches_per_epoch=3)
    for step, batch in enumerate(epoch(sampler, 0)):
        sampler.add_loss(batch[0], -1.0, step + 1)
    assert sampler.state[0].tolist() == [1 / 3] * 3


@given(st.integers(1, 50), st.lists(st.floats(0.001, 1), min_size=1, max_size=6))
def test_largest_remainders(total: int, shares: list[float]) -> None:
    counts = divide(total, np.array(shares))
    assert counts.sum() == total
    assert (abs(counts - total * np.array(shares) / sum(shares)) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": "sizes"}, r"sampler\.shares=sizes: equal, loss, size, or a number for each of a, b, c"),
        ({"shares": {"a": 1, "b": 1}}, r"sampler\.shares={'a': 1, 'b': 1}: equal.*a, b, c"),
        ({"shares": {"a": 0, "b": 0, "c": 0}}, r"sampler\.shares=.*a number for each"),
        ({"shares": {"a": 1, "b": 1, "c": -1}}, r"sampler\.shares\.c=-1: must be a finite number, 0 or more"),
        ({"shares": "loss", "mixed": True}, r"sampler\.shares=loss: takes batches of one data set each"),
        ({"classes_per_batch": 5}, r"only 4 classes; .*classes_per_batch=4.* \(data set c\)"),
        ({"mixed": True, "shares": {"a": 1, "b": 99, "c": 1}}, r"sampler\.classes_per_batch=0: .* \(data set a\)"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ManySetsSampler(
            **{"labels": LABELS, "classes_per_batch": 4, "images_per_class": 2, "domain": DOMAIN, **settings}
        )
