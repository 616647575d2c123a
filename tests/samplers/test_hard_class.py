from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.runtime.errors import InputError
from dml.samplers.hard_class import HardClassSampler


@st.composite
def setups(draw):
    """labels, C, K, and embeddings of small whole numbers: ties and duplicates are many, float32 is exact."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=10))
    k = draw(st.integers(1, max(sizes)))
    enough = sum(size >= k for size in sizes)
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(np.arange(len(sizes)), sizes))
    embeddings = draw(hnp.arrays(np.float64, (len(labels), 2), elements=st.integers(-3, 3).map(float)))
    return labels, draw(st.integers(1, enough)), k, embeddings


def classes_of(batch: list[int], labels: np.ndarray, k: int) -> list[int]:
    """The batch's classes in order; fails unless each has k distinct adjacent images."""
    classes = []
    for start in range(0, len(batch), k):
        rows = batch[start : start + k]
        assert len(set(rows)) == k
        [label] = set(labels[rows].tolist())
        classes.append(label)
    assert len(set(classes)) == len(classes)
    return classes


def squared_distance(first: np.ndarray, second: np.ndarray) -> float:
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True))


@given(
    classes=st.integers(2, 9),
    k=st.integers(1, 3),
    c=st.integers(1, 9),
    margin=st.sampled_from([0.0, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_a_batch_has_the_classes_that_violate_the_constraint_then_the_nearest(classes, k, c, margin, seed):
    """Classes of K images each: all of them are drawn."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), k))
    embeddings = np.random.default_rng(seed + 1).integers(-3, 4, (len(labels), 2)).astype(float)
    sampler = HardClassSampler(labels, min(c, classes), k, embeddings=embeddings, margin=margin, seed=seed)
    for batch in sampler:
        chosen = classes_of(batch, labels, k)
        to_anchor = [squared_distance(row, embeddings[batch[0]]) for row in embeddings]
        farthest_positive = max(to_anchor[row] for row in batch[:k])
        nearest = {y: min(to_anchor[i] for i in np.flatnonzero(labels == y)) for y in set(labels) - {chosen[0]}}
        violating = {y for y, distance in nearest.items() if distance < farthest_positive + margin}
        if len(violating) >= len(chosen) - 1:
            assert set(chosen[1:]) <= violating
        else:
            assert set(chosen[1 : 1 + len(violating)]) == violating
            others = sorted(distance for y, distance in nearest.items() if y not in violating)
            filled = [nearest[y] for y in chosen[1 + len(violating) :]]
            assert filled == others[: len(filled)]


def test_classes_that_violate_the_constraint_are_drawn_equally_often():
    """For anchors at 0 with a positive at 1, classes 1 to 8 violate it however near they are; 9 to 15 don't."""
    labels = np.repeat(np.arange(16), 2)
    embeddings = np.repeat(np.linspace(0.0, 30.0, 16), 2)[:, None]
    embeddings[1:18, 0] = [1.0, *np.repeat(np.linspace(0.1, 1.4, 8), 2)]
    sampler = HardClassSampler(labels, 4, embeddings=embeddings, margin=1.0, batches_per_epoch=5000)
    batches = [classes_of(batch, labels, 2) for batch in sampler if labels[batch[0]] == 0]
    drawn = Counter(y for chosen in batches for y in chosen[1:])
    assert set(drawn) == set(range(1, 9))
    assert max(drawn.values()) < 1.5 * min(drawn.values())


def test_a_class_counts_by_the_images_that_are_drawn_of_it():
    """An anchor class at 0, one with a near image among far ones, and one that is always near."""
    labels = np.array([0, 0, 1, 1, 1, 1, 2, 2])
    embeddings = np.array([0, 0, 0, 9, 9, 9, 0.1, 0.1])[:, None]
    sampler = HardClassSampler(labels, 2, embeddings=embeddings, batches_per_epoch=600)
    partners = [batch[2:] for batch in sampler if labels[batch[0]] == 0]
    of_1 = [rows for rows in partners if labels[rows[0]] == 1]
    assert all(2 in rows for rows in of_1)
    assert len(of_1) == pytest.approx(len(partners) / 4, rel=0.3)  # near image drawn: 1 of 2, and then chosen: 1 of 2


def test_new_embeddings_count_from_the_next_iteration_on():
    labels, rng = np.arange(60) // 3, np.random.default_rng(0)
    first, second = rng.standard_normal((2, 60, 4))
    sampler = HardClassSampler(labels, 5, embeddings=first)
    sampler.set_epoch(0)
    before = list(sampler)
    under_way = iter(sampler)
    begun = [next(under_way)]
    sampler.set_embeddings(second)
    second[:] = 0
    assert begun + list(under_way) == before
    assert list(sampler) != before


def test_without_embeddings_classes_are_drawn_at_random():
    labels = np.arange(40) // 2
    sampler = HardClassSampler(labels, 4, batches_per_epoch=1000)
    pairs = Counter()
    for batch in sampler:
        classes = classes_of(batch, labels, 2)
        pairs.update((a, b) for a in classes for b in classes if a < b)
    assert len(pairs) == 190
    assert max(pairs.values()) < 3 * min(pairs.values())


def test_candidates_are_a_random_part_of_the_classes():
    labels = np.arange(200) // 2  # class c lies at c: all candidates give neighbors, a part of them gaps
    line = labels[:, None].astype(float)

    def widths(candidates):
        sampler = HardClassSampler(labels, 3, embeddings=line, candidate_classes=candidates, batches_per_epoch=50)
        return [np.ptp(classes_of(batch, labels, 2)) for batch in sampler]

    assert set(widths(100)) == set(widths(1000)) == {2}
    assert np.mean(widths(20)) > 5
    assert len(set(widths(3))) > 10


def test_the_finest_level_of_hierarchical_labels_counts_and_small_classes_do_not():
    labels = np.array([5, 5, 5, -2, -2, 7, 9, 9])
    embeddings = torch.tensor([[1.0], [1.0], [1.0], [0.0], [0.0], [1.0], [5.0], [5.0]])
    sampler = HardClassSampler(np.stack([labels, labels // 2], axis=1), 2, embeddings=embeddings)
    assert len(sampler) == 2
    found = {frozenset(labels[batch].tolist()) for batch in HardClassSampler(labels, 2, batches_per_epoch=50)}
    assert found == {frozenset({-2, 5}), frozenset({-2, 9}), frozenset({5, 9})}
    for number in range(9):
        sampler.set_epoch(number)
        assert {frozenset(labels[batch].tolist()) for batch in sampler} <= {frozenset({-2, 5}), frozenset({5, 9})}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes_per_batch": 3}, "sampler.classes_per_batch=3: the training split has only 2 classes with"),
        ({"images_per_class": 0}, "sampler.images_per_class=0: must be a whole number, 1 or more"),
        ({"candidate_classes": 1}, "sampler.candidate_classes=1: must be a whole number, 2 or more"),
        ({"embeddings": np.zeros((2, 4))}, "embeddings of shape (2, 4): must be (5, D) finite numbers"),
        ({"embeddings": np.full((5, 4), np.nan)}, "embeddings of shape (5, 4): must be (5, D) finite numbers"),
        ({"margin": -0.1}, "sampler.margin=-0.1: must be a finite number, 0 or more"),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong, message):
    arguments = {"labels": [0, 0, 1, 2, 2], "classes_per_batch": 2} | wrong
    with pytest.raises(InputError) as error:
        HardClassSampler(**arguments)
    assert str(error.value).startswith(message)
