from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.runtime.errors import InputError
from dml.samplers.class_balanced import ClassBalancedSampler
from dml.samplers.image_balanced import ImageBalancedSampler, max_batches


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Class c has sizes[c] images, in any order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def epoch(sampler: ImageBalancedSampler | ClassBalancedSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


def released(labels: np.ndarray, c: int, k: int, seed: int) -> list[list[int]]:
    """An epoch of the release's sampler, as a loop: each batch takes a group of each class in turn until it is full."""
    rng = np.random.default_rng(seed)
    left = {label: rng.permutation(np.flatnonzero(labels == label)).tolist() for label in set(labels.tolist())}
    order = rng.permutation([*left]).tolist()
    batches = []
    while True:
        batch = []
        for label in order:
            if len(left[label]) >= k and len(batch) < c * k:
                batch += [left[label].pop() for _ in range(k)]
        if len(batch) < c * k:
            return batches
        batches.append(batch)


@st.composite
def setups(draw):
    """labels, C and K that make a sampler."""
    k = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(1, 40), min_size=2, max_size=12).filter(lambda sizes: max(sizes) >= k))
    c = draw(st.integers(1, sum(size >= k for size in sizes)))
    return labels_of(sizes, draw(st.integers(0, 9))), c, k


@given(setups(), st.integers(0, 10_000), st.integers(0, 2**70))
def test_batches_are_different_classes_of_different_images(setup, number, seed):
    labels, c, k = setup
    sampler = ImageBalancedSampler(labels, c, k, seed=seed)
    batches = epoch(sampler, number)
    assert len(batches) == len(sampler) >= 1
    for batch in batches:
        stretches = [(label, len(list(rows))) for label, rows in groupby(labels[batch].tolist())]
        assert [length for _, length in stretches] == [k] * c
        assert len({label for label, _ in stretches}) == c


@given(setups(), st.integers(0, 10_000))
def test_no_image_comes_twice_an_epoch_and_few_are_left_out(setup, number):
    labels, c, k = setup
    sampler = ImageBalancedSampler(labels, c, k)
    counts = Counter(row for batch in epoch(sampler, number) for row in batch)
    assert set(counts.values()) == {1}
    groups = np.bincount(labels) // k
    possible = int(np.minimum(groups, len(sampler)).sum())
    assert possible - len(counts) // k < c
    assert all(sum(labels[row] == label for row in counts) <= size * k for label, size in enumerate(groups))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_the_number_of_batches_is_the_largest_possible(groups, c):
    counts = np.array(groups)
    feasible = [b for b in range(1, counts.sum() + 1) if np.minimum(counts, b).sum() >= c * b]
    assert max_batches(counts, c) == max(feasible, default=0)


@given(setups(), st.integers(0, 99))
def test_an_epoch_is_no_shorter_than_the_releases(setup, seed):
    labels, c, k = setup
    assert len(ImageBalancedSampler(labels, c, k)) >= len(released(labels, c, k, seed))


def test_a_long_tail_is_drawn_as_in_the_release():
    """What the large classes, a tenth of all, give to an epoch; docs/training.md prints these figures."""
    labels = labels_of([64] * 10 + [8] * 90)
    large = labels < 10
    samplers = {"image": ImageBalancedSampler(labels, 8, 4), "class": ClassBalancedSampler(labels, 8, 4)}
    shares = {
        name: large[[row for number in range(20) for batch in epoch(sampler, number) for row in batch]].mean()
        for name, sampler in samplers.items()
    }
    batches = [batch for seed in range(20) for batch in released(labels, 8, 4, seed)]
    assert shares["image"] == pytest.approx(large.mean(), abs=0.01)  # 47 % of the images
    # the release stops when fewer than 8 classes have groups left, and these are large ones
    assert 0.4 < large[np.concatenate(batches)].mean() < shares["image"]
    assert shares["class"] == pytest.approx(0.1, abs=0.01)
    assert len(samplers["image"]) == len(labels) // 32


def test_classes_meet_in_consecutive_groups_as_in_the_release():
    """How often two classes are in one batch of an epoch: of classes of ten groups, as often as they are at all."""
    labels = labels_of([40] * 32)
    for batches in (epoch(ImageBalancedSampler(labels, 8, 4), 0), released(labels, 8, 4, 0)):
        met = Counter(frozenset(labels[batch].tolist()) for batch in batches)
        assert set(met.values()) == {10}


@pytest.mark.parametrize(
    ("c", "k", "message"),
    [
        (3, 4, "sampler\\.classes_per_batch=3: the training split has only 2 classes with images_per_class=4 images;"),
        (0, 4, r"sampler\.classes_per_batch=0"),
        (2, 1, r"sampler\.images_per_class=1: must be a whole number, 2 or more"),
        (2, 9, r"=2: the training split has only 0 classes with .*=9 images; sampler\.images_per_class=4 would do$"),
    ],
)
def test_settings_that_the_labels_cannot_meet_are_named(c, k, message):
    with pytest.raises(InputError, match=message):
        ImageBalancedSampler(labels_of([3, 4, 2, 8]), c, k)
