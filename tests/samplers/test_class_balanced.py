import re
from collections import Counter
from itertools import groupby, islice

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dml.runtime.errors import InputError
from dml.samplers.class_balanced import ClassBalancedSampler

Batches = list[list[int]]


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Class c has sizes[c] images, in any order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def epoch(sampler: ClassBalancedSampler, number: int) -> Batches:
    sampler.set_epoch(number)
    return list(sampler)


def runs(batch: list[int], labels: np.ndarray) -> list[tuple[int, list[int]]]:
    """Class and rows of each stretch of adjacent images of one class."""
    return [(c, list(rows)) for c, rows in groupby(batch, key=lambda row: int(labels[row]))]


def uneven(counts: Counter[int], rows: np.ndarray) -> int:
    seen = [counts[int(row)] for row in rows]
    return max(seen) - min(seen)


@st.composite
def setups(draw, short_classes=("repeat", "drop", "fill")):
    """labels, C, K and keyword arguments that make a sampler."""
    short = draw(st.sampled_from(short_classes))
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=9))
    k = draw(st.integers(1, {"repeat": 15, "drop": max(sizes), "fill": min(7, sum(sizes))}[short]))
    most = {
        "repeat": len(sizes),
        "drop": sum(size >= k for size in sizes),
        "fill": sum(min(size, k) for size in sizes) // k,
    }[short]
    assume(most >= 1)
    keywords = {
        "short_classes": short,
        "batches_per_epoch": draw(st.none() | st.integers(1, 9)),
        "seed": draw(st.integers(0, 2**70)),
    }
    return labels_of(sizes, draw(st.integers(0, 9))), draw(st.integers(1, most)), k, keywords


@given(setups(), st.integers(0, 50), st.integers(1, 6))
def test_epochs_cut_one_endless_sequence(setup, number, batches):
    labels, c, k, keywords = setup
    short = ClassBalancedSampler(labels, c, k, **keywords | {"batches_per_epoch": batches})
    long = ClassBalancedSampler(labels, c, k, **keywords | {"batches_per_epoch": batches * (number + 2)})
    cut = slice(batches * number, batches * (number + 1))
    assert epoch(short, number) == list(long)[cut]


@given(setups(), st.integers(0, 10_000))
def test_batches_are_exact_and_classes_adjacent_and_distinct(setup, number):
    labels, c, k, keywords = setup
    sampler = ClassBalancedSampler(labels, c, k, **keywords)
    batches = epoch(sampler, number)
    sizes = np.bincount(labels)
    assert len(batches) == len(sampler)
    for batch in batches:
        stretches = runs(batch, labels)
        classes = [label for label, _ in stretches]
        assert len(batch) == c * k
        assert len(set(classes)) == len(classes)
        for label, rows in stretches:
            repeats = Counter(rows)
            if keywords["short_classes"] == "repeat" and sizes[label] < k:
                assert uneven(repeats, np.flatnonzero(labels == label)) <= 1
            else:
                assert max(repeats.values()) == 1
        if keywords["short_classes"] != "fill":
            assert len(classes) == c
            assert all(len(rows) == k for _, rows in stretches)


@given(setups(short_classes=("repeat", "drop")), st.integers(1, 5))
def test_every_image_of_a_class_is_used_before_one_repeats(setup, epochs):
    labels, c, k, keywords = setup
    sampler = ClassBalancedSampler(labels, c, k, **keywords)
    images, classes = Counter(), Counter()
    drawn = [y for y in set(labels.tolist()) if keywords["short_classes"] == "repeat" or sum(labels == y) >= k]
    for number in range(epochs):
        for batch in epoch(sampler, number):
            images.update(batch)
            classes.update(label for label, _ in runs(batch, labels))
            assert all(uneven(images, np.flatnonzero(labels == label)) <= 1 for label in drawn)
            assert uneven(classes, np.array(drawn)) <= 1
    assert set(classes) <= set(drawn)


@given(setups(short_classes=("fill",)), st.integers(1, 5))
def test_fill_gives_each_class_what_it_has_and_goes_on_with_a_cut_class(setup, epochs):
    labels, c, k, keywords = setup
    sampler = ClassBalancedSampler(labels, c, k, **keywords)
    gives = np.minimum(np.bincount(labels), k)
    spare = gives.sum() - c * k
    assume(not 0 < spare < gives.max() - 1)
    images = Counter()
    cut, rest = -1, 0
    for number in range(epochs):
        for batch in epoch(sampler, number):
            images.update(batch)
            assert all(uneven(images, np.flatnonzero(labels == label)) <= 1 for label in range(len(gives)))
            stretches = runs(batch, labels)
            if rest:
                label, rows = stretches.pop(0)
                assert (label, len(rows)) == (cut, rest)
            rest = 0
            if stretches:
                cut, rows = stretches.pop()
                rest = gives[cut] - len(rows)
            assert all(len(rows) == gives[label] for label, rows in stretches)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("start", [0, 999_999])
def test_images_are_even_in_a_batch_also_where_it_crosses_into_the_next_shuffle(size, start):
    labels = np.zeros(size, dtype=int)
    for k in range(1, 2 * size + 2):
        sampler = ClassBalancedSampler(labels, 1, k, batches_per_epoch=3 * size)
        counts = Counter()
        for batch in epoch(sampler, start) + epoch(sampler, start + 1):
            assert uneven(Counter(batch), np.arange(size)) <= 1
            counts.update(batch)
        assert set(counts.values()) == {6 * k}


@given(st.lists(st.integers(4, 9), min_size=3, max_size=8), st.integers(0, 99))
def test_without_short_classes_the_three_ways_agree(sizes, number):
    labels = labels_of(sizes)
    ways = [ClassBalancedSampler(labels, 3, 4, short_classes=way) for way in ("repeat", "drop", "fill")]
    batches = [epoch(sampler, number) for sampler in ways]
    assert batches[0] == batches[1] == batches[2]


def test_images_of_a_class_meet_all_others():
    labels = np.zeros(7, dtype=int)
    met = Counter()
    for batch in epoch(ClassBalancedSampler(labels, 1, 3, batches_per_epoch=3500), 0):
        met.update((a, b) for a in batch for b in batch if a < b)
    assert len(met) == 21
    assert max(met.values()) < 1.2 * min(met.values())


def test_first_places_of_a_batch_are_shared_evenly_among_classes():
    labels = labels_of([4] * 5)
    sampler = ClassBalancedSampler(labels, 3, 2, batches_per_epoch=2500)
    opens = Counter(labels[batch[0]] for batch in sampler)
    assert min(opens.values()) > 450


@pytest.mark.parametrize(("short_classes", "batches"), [("repeat", 4), ("drop", 3), ("fill", 4)])
def test_by_default_an_epoch_has_the_images_of_one_pass(short_classes, batches):
    labels = labels_of([7, 5, 3, 2, 2])  # 19 images, 15 of them in classes of three or more
    assert len(ClassBalancedSampler(labels, 2, 3, short_classes=short_classes)) == batches
    assert len(ClassBalancedSampler(labels, 2, 3, short_classes=short_classes, batches_per_epoch=11)) == 11


def test_fill_takes_further_classes_and_goes_on_with_the_one_it_cut():
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    batches = list(ClassBalancedSampler(labels, 1, 3, short_classes="fill", batches_per_epoch=8))
    assert [len(batch) for batch in batches] == [3] * 8
    assert [len(runs(batch, labels)) for batch in batches] == [2] * 8
    assert all(labels[a[-1]] == labels[b[0]] for a, b in zip(batches[::2], batches[1::2], strict=True))
    assert set(Counter(row for batch in batches for row in batch).values()) == {3}


def test_fill_with_hardly_more_images_than_a_batch_makes_each_round_one_batch():
    labels = labels_of([3, 3, 1])
    batches = list(ClassBalancedSampler(labels, 2, 3, short_classes="fill", batches_per_epoch=50))
    assert all(len(set(batch)) == 6 for batch in batches)
    assert {row for batch in batches for row in batch} == set(range(7))


def test_the_finest_level_of_hierarchical_labels_counts():
    labels = labels_of([4, 6, 3])
    levels = np.stack([labels, labels // 2], axis=1)
    expected = list(ClassBalancedSampler(labels, 2, 3))
    assert list(ClassBalancedSampler(levels, 2, 3)) == expected
    assert list(ClassBalancedSampler(torch.from_numpy(levels), 2, 3)) == expected
    assert list(ClassBalancedSampler(labels.tolist(), 2, 3)) == expected
    assert list(ClassBalancedSampler(1000 * labels - 7, 2, 3)) == expected


def test_many_batches_an_epoch_take_no_more_memory():
    sampler = ClassBalancedSampler(labels_of([4, 6, 3]), 2, 3, batches_per_epoch=10**12)
    sampler.set_epoch(10**6)
    assert len(list(islice(sampler, 10))) == 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes_per_batch": 4}, "sampler.classes_per_batch=4: the training split has only 3 classes;"),
        ({"classes_per_batch": 3, "images_per_class": 4, "short_classes": "drop"}, "sampler.classes_per_batch=3: the"),
        ({"classes_per_batch": 0}, "sampler.classes_per_batch=0: must be a whole number, 1 or more"),
        ({"classes_per_batch": "all"}, "sampler.classes_per_batch='all': must be a whole number, 1 or more"),
        ({"labels": [5, 5, 5], "classes_per_batch": "auto"}, "sampler.classes_per_batch=auto: the training split has"),
        ({"classes_per_batch": 3, "images_per_class": 6, "short_classes": "fill"}, "sampler.classes_per_batch=3: the"),
        ({"images_per_class": 0}, "sampler.images_per_class=0: must be a whole number, 1 or more"),
        ({"images_per_class": 2.5}, "sampler.images_per_class=2.5: must be a whole number, 1 or more"),
        ({"short_classes": "pad"}, "sampler.short_classes=pad: must be one of repeat, fill, drop"),
        (
            {"images_per_class": 7, "short_classes": "drop"},
            "sampler.classes_per_batch=2: the training split has",
        ),
        ({"images_per_class": 7, "short_classes": "fill"}, "sampler.classes_per_batch=2: the training split has"),
        ({"labels": []}, "sampler: labels of shape (0,), float64: must be (N,) or (N, L) integers"),
        ({"labels": [0.0, 1.0]}, "sampler: labels of shape (2,), float64: must be (N,) or (N, L) integers"),
        ({"labels": [[[[0]]]]}, "sampler: labels of shape (1, 1, 1, 1), int64: must be (N,) or (N, L) integers"),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong, message):
    arguments = {"labels": labels_of([6, 4, 3]), "classes_per_batch": 2, "images_per_class": 3} | wrong
    with pytest.raises(InputError) as error:
        ClassBalancedSampler(**arguments)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("sizes", "settings", "expected"),
    [
        ([3] * 30, {}, 20),
        ([3] * 20, {}, 20),
        ([3] * 10, {}, 10),
        ([3] * 2, {}, 2),
        ([3, 3, 3, 2, 2], {"short_classes": "drop"}, 3),
        ([3, 3, 3, 2, 2], {"short_classes": "fill"}, 4),
    ],
)
def test_auto_takes_20_classes_or_all_that_can_be_drawn(sizes, settings, expected):
    sampler = ClassBalancedSampler(labels_of(sizes), "auto", 3, **settings)
    assert sampler.classes_per_batch == expected
    assert list(sampler) == list(ClassBalancedSampler(labels_of(sizes), expected, 3, **settings))
    assert {len(batch) for batch in sampler} == {3 * expected}


@given(st.lists(st.integers(1, 6), min_size=2, max_size=12), st.integers(2, 14), st.integers(1, 7))
def test_the_values_that_an_error_names_would_do(sizes, c, k):
    for short_classes in ("repeat", "fill", "drop"):
        settings = {"classes_per_batch": c, "images_per_class": k, "short_classes": short_classes}
        try:
            ClassBalancedSampler(labels_of(sizes), **settings)
        except InputError as error:
            for name, value in re.findall(r"sampler\.(\w+)=(\w+)(?= or | would do)", str(error)):
                changed = settings | {name: int(value) if value.isdigit() else value}
                ClassBalancedSampler(labels_of(sizes), **changed)
