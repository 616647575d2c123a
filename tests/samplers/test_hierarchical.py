import logging
from collections import Counter
from itertools import combinations, groupby

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from dml.runtime.errors import InputError
from dml.samplers.hierarchical import HierarchicalSampler

lenient = examples(50)

Batches = list[list[int]]


def labels_of(sizes: list[list[int]], seed: int = 0) -> np.ndarray:
    """Super-class s has classes of sizes[s] images; rows in any order, (N, 2)."""
    of_super = np.repeat(np.arange(len(sizes)), [len(classes) for classes in sizes])
    per_class = np.concatenate([np.array(classes, int) for classes in sizes])
    rows = np.stack([np.arange(len(of_super)), of_super], axis=1)
    return np.random.default_rng(seed).permutation(np.repeat(rows, per_class, axis=0))


def epoch(sampler: HierarchicalSampler, number: int) -> Batches:
    sampler.set_epoch(number)
    return list(sampler)


def classes_to_give(sizes: list[int], images: int, short: str) -> int:
    """How many classes of so many images a super-class can fill."""
    if short == "repeat":
        return len(sizes)
    if short == "drop":
        return sum(size >= images for size in sizes)
    return sum(min(size, images) for size in sizes) // images


def expected_shares(sizes: list[list[int]], count: int, images: int, short: str) -> dict[tuple[int, int], list[int]]:
    """For each pair that can fill a batch, the classes of either: as near to half as they allow."""
    room = [classes_to_give(classes, images, short) for classes in sizes]
    shares = {}
    for a, b in combinations(range(len(sizes)), 2):
        ways = [(n, count - n) for n in range(1, count) if n <= room[a] and count - n <= room[b]]
        if ways:
            shares[a, b] = list(min(ways, key=lambda way: abs(way[0] - way[1])))
    return shares


@st.composite
def setups(draw, short_classes=("repeat", "drop", "fill")):
    """sizes, labels, C, K and keyword arguments that make a sampler."""
    sizes = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=7), min_size=2, max_size=5))
    c, k = 2 * draw(st.integers(1, 4)), draw(st.integers(1, 4))
    short = draw(st.sampled_from(short_classes))
    assume(expected_shares(sizes, c, k, short))
    keywords = {
        "batches_per_pair": draw(st.integers(1, 4)),
        "short_classes": short,
        "seed": draw(st.integers(0, 2**70)),
    }
    return sizes, labels_of(sizes, draw(st.integers(0, 9))), c, k, keywords


@lenient
@given(setups(), st.integers(0, 10_000))
def test_every_pair_gives_its_batches_half_from_each(setup, number):
    sizes, labels, c, k, keywords = setup
    batches = epoch(sampler := HierarchicalSampler(labels, 1, c, k, **keywords), number)
    shares = expected_shares(sizes, c, k, keywords["short_classes"])
    assert len(sampler) == len(batches) == len(shares) * keywords["batches_per_pair"]
    seen = Counter()
    for batch in batches:
        assert len(batch) == c * k
        supers = [(s, list(rows)) for s, rows in groupby(batch, key=lambda row: int(labels[row, 1]))]
        (a, first), (b, second) = supers
        assert [len(first), len(second)] == [share * k for share in shares[a, b]]
        seen[a, b] += 1
    assert seen == dict.fromkeys(shares, keywords["batches_per_pair"])


@lenient
@given(setups(), st.integers(0, 10_000))
def test_classes_are_adjacent_and_distinct_and_repeat_images_only_if_they_must(setup, number):
    _, labels, c, k, keywords = setup
    sizes = np.bincount(labels[:, 0])
    for batch in epoch(HierarchicalSampler(labels, 1, c, k, **keywords), number):
        stretches = [(y, list(rows)) for y, rows in groupby(batch, key=lambda row: int(labels[row, 0]))]
        assert len({y for y, _ in stretches}) == len(stretches)
        if keywords["short_classes"] != "fill":
            assert [len(rows) for _, rows in stretches] == [k] * c
        for y, rows in stretches:
            copies = max(Counter(rows).values())
            assert copies == (-(-k // sizes[y]) if keywords["short_classes"] == "repeat" else 1)


def test_stanford_online_products_epochs_have_330_batches_of_256():
    labels = labels_of([[2, 4, 5, 12] * (8 + s) for s in range(12)])
    sampler = HierarchicalSampler(labels, 1, 64, 4)
    assert len(sampler) == 330
    batches = epoch(sampler, 3)
    assert len(batches) == 330
    for batch in batches:
        assert len(batch) == 256
        assert len(set(labels[batch, 0])) == 64
        assert sorted(Counter(labels[batch, 1]).values()) == [128, 128]


def test_classes_and_images_of_a_super_class_are_drawn_evenly_across_epochs():
    labels = labels_of([[3, 4, 5, 6]] * 4)
    sampler = HierarchicalSampler(labels, 1, 6, 2, 1)
    images = Counter()
    for number in range(10):
        for batch in epoch(sampler, number):
            images.update(batch)
            classes = Counter(labels[list(images.elements()), 0].tolist())
            for s in range(4):
                mine = [classes[y] for y in range(4 * s, 4 * s + 4)]
                assert max(mine) - min(mine) <= 2  # one draw of two images
            for y in range(16):
                used = [images[row] for row in np.flatnonzero(labels[:, 0] == y)]
                assert max(used) - min(used) <= 1


def test_super_classes_shuffle_apart_from_each_other():
    half = 6 * 4
    first = labels_of([[4] * 6])
    labels = np.concatenate([first, first + np.array([6, 1])])
    batch = next(iter(HierarchicalSampler(labels, 1, 12, 4)))
    assert [row + half for row in batch[:half]] != batch[half:]


def test_any_coarser_level_can_be_chosen():
    fine = np.arange(48) // 2
    labels = np.stack([fine, fine // 3, fine // 12], axis=1)
    assert len(HierarchicalSampler(labels, 1, 4, 2)) == 5 * 28
    assert len(HierarchicalSampler(torch.from_numpy(labels), 2, 4, 2)) == 5
    assert list(HierarchicalSampler(9 * labels - 7, 2, 4, 2)) == list(HierarchicalSampler(labels, 2, 4, 2))


def test_short_super_classes_are_made_up_for_and_counted(caplog):
    labels = labels_of([[2] * 8, [2] * 5, [2]])
    with caplog.at_level(logging.WARNING):
        sampler = HierarchicalSampler(labels, 1, 8, 2, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "hierarchical sampling: 1 of 3 super-classes of level 1 have fewer than 4 classes to give; "
        "1 of 3 pairs have fewer than 8 together and give no batch"
    ]
    found = {tuple(sorted(Counter(labels[batch, 1].tolist()).items())) for batch in sampler}
    assert found == {((0, 8), (1, 8)), ((0, 14), (2, 2))}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"super_level": 0}, "sampler.super_level=0: must be a whole number, 1 or more"),
        ({"super_level": 2}, "sampler.super_level=2: the training labels have 2 level(s), choose 1 to 1"),
        ({"labels": np.arange(6)}, "sampler.super_level=1: the training labels have 1 level(s), this sampler needs 2"),
        (
            {"labels": np.zeros((4, 2), int)},
            "sampler.classes_per_batch=4: no two super-classes of level 1",
        ),
        ({"classes_per_batch": 5}, "sampler.classes_per_batch=5: must be even, each of two super-classes gives half"),
        ({"classes_per_batch": 8}, "sampler.classes_per_batch=8: no two super-classes of level 1 fill a batch, the"),
        ({"images_per_class": 9, "short_classes": "drop"}, "sampler.classes_per_batch=4: no two super-classes of"),
        ({"classes_per_batch": 0}, "sampler.classes_per_batch=0: must be a whole number, 2 or more"),
        ({"short_classes": "pad"}, "sampler.short_classes=pad: must be one of repeat, fill, drop"),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong, message):
    arguments = {
        "labels": labels_of([[3, 4, 5], [2, 2, 2, 2]]),
        "super_level": 1,
        "classes_per_batch": 4,
        "images_per_class": 2,
    } | wrong
    with pytest.raises(InputError) as error:
        HierarchicalSampler(**arguments)
    assert str(error.value).startswith(message)


def test_auto_takes_as_many_classes_as_two_super_classes_can_give():
    labels = labels_of([[3, 4, 5], [2, 2, 2, 2], [4, 4]])
    sampler = HierarchicalSampler(labels, 1, "auto", 2)
    assert sampler.classes_per_batch == 6
    assert list(sampler) == list(HierarchicalSampler(labels, 1, 6, 2))
