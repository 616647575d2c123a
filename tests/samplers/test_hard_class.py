from collections import Counter

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.runtime.errors import InputError
from dml.samplers.hard_class import HardClassSampler

CONFIG = ROOT / "conf" / "sampler" / "hard_class.yaml"


@st.composite
def setups(draw):
    """labels, C, K, and class embeddings of small whole numbers: ties and duplicates are many, float32 is exact."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=10))
    k = draw(st.integers(1, max(sizes)))
    enough = sum(size >= k for size in sizes)
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(np.arange(len(sizes)), sizes))
    embeddings = draw(hnp.arrays(np.float64, (len(sizes), 2), elements=st.integers(-3, 3).map(float)))
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


def nearest(candidate: np.ndarray, chosen: np.ndarray) -> float:
    return min(sum((a - b) ** 2 for a, b in zip(candidate, other, strict=True)) for other in chosen)


@given(setups(), st.integers(0, 1000))
def test_each_class_is_the_nearest_candidate_to_those_before_it(setup, number):
    labels, c, k, embeddings = setup
    sampler = HardClassSampler(labels, c, k, class_embeddings=embeddings)
    sampler.set_epoch(number)
    sizes = np.bincount(labels)
    candidates = {y for y in range(len(sizes)) if sizes[y] >= k}
    for batch in sampler:
        assert len(batch) == c * k
        classes = classes_of(batch, labels, k)
        assert set(classes) <= candidates
        for place in range(1, c):
            left = candidates - set(classes[:place])
            distances = {y: nearest(embeddings[y], embeddings[classes[:place]]) for y in left}
            assert distances[classes[place]] == min(distances.values())


@given(setups(), st.integers(0, 1000))
def test_an_epoch_depends_on_settings_seed_embeddings_and_its_number_only(setup, number):
    labels, c, k, embeddings = setup
    sampler = HardClassSampler(labels, c, k, class_embeddings=embeddings, seed=3)
    other = HardClassSampler(labels, c, k, seed=3)
    sampler.set_epoch(number)
    expected = list(sampler)
    list(other)
    other.set_epoch(number)
    other.set_class_embeddings(embeddings.copy())
    assert list(other) == list(sampler) == expected
    assert all(type(row) is int for batch in expected for row in batch)


def test_new_embeddings_count_from_the_next_iteration_on():
    labels, rng = np.arange(60) // 3, np.random.default_rng(0)
    first, second = rng.standard_normal((2, 20, 4))
    sampler = HardClassSampler(labels, 5, class_embeddings=first)
    sampler.set_epoch(0)
    before = list(sampler)
    under_way = iter(sampler)
    begun = [next(under_way)]
    sampler.set_class_embeddings(second)
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
    line = np.arange(100.0)[:, None]

    def widths(candidates):
        sampler = HardClassSampler(labels, 5, class_embeddings=line, candidate_classes=candidates, batches_per_epoch=50)
        return [np.ptp(classes_of(batch, labels, 2)) for batch in sampler]

    assert set(widths(100)) == set(widths(1000)) == {4}
    assert np.mean(widths(20)) > 10
    assert len(set(widths(5))) > 10


def test_epochs_and_seeds_differ():
    labels, embeddings = np.arange(60) // 3, np.random.default_rng(0).standard_normal((20, 4))
    batches = []
    for seed in range(2):
        sampler = HardClassSampler(labels, 5, class_embeddings=embeddings, seed=seed)
        assert len(sampler) == 6
        for number in range(2):
            sampler.set_epoch(number)
            batches += list(sampler)
    assert len({tuple(batch) for batch in batches}) == len(batches) == 24


def test_the_finest_level_of_hierarchical_labels_counts_and_small_classes_do_not():
    labels = np.array([5, 5, 5, -2, -2, 7, 9, 9])
    embeddings = torch.tensor([[0.0], [1.0], [1.0], [5.0]])  # of -2, 5, 7 and 9
    sampler = HardClassSampler(np.stack([labels, labels // 2], axis=1), 2, class_embeddings=embeddings)
    assert len(sampler) == 2
    found = {frozenset(labels[batch].tolist()) for batch in HardClassSampler(labels, 2, batches_per_epoch=50)}
    assert found == {frozenset({-2, 5}), frozenset({-2, 9}), frozenset({5, 9})}
    for number in range(9):
        sampler.set_epoch(number)
        assert {frozenset(labels[batch].tolist()) for batch in sampler} <= {frozenset({-2, 5}), frozenset({5, 9})}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"classes_per_batch": 3},
            "sampler.classes_per_batch=3: the training split has only 2 classes with images_per_class=2 images; "
            "sampler.classes_per_batch=2 would do",
        ),
        ({"classes_per_batch": 0}, "sampler.classes_per_batch=0: must be auto, or a whole number, 1 or more"),
        ({"images_per_class": 0}, "sampler.images_per_class=0: must be a whole number, 1 or more"),
        ({"candidate_classes": 1}, "sampler.candidate_classes=1: must be a whole number, 2 or more"),
        ({"batches_per_epoch": 0}, "sampler.batches_per_epoch=0: must be a whole number, 1 or more"),
        ({"seed": -1}, "sampler.seed=-1: must be a whole number, 0 or more"),
        (
            {"class_embeddings": np.zeros((2, 4))},
            "class embeddings of shape (2, 4): must be (3, D) finite numbers",
        ),
        (
            {"class_embeddings": np.full((3, 4), np.nan)},
            "class embeddings of shape (3, 4): must be (3, D) finite numbers",
        ),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong, message):
    arguments = {"labels": [0, 0, 1, 2, 2], "classes_per_batch": 2} | wrong
    with pytest.raises(InputError) as error:
        HardClassSampler(**arguments)
    assert str(error.value) == message


def test_auto_takes_all_classes_with_enough_images():
    sampler = HardClassSampler([0, 0, 1, 2, 2, 3, 3], "auto")
    assert sampler.classes_per_batch == 3
    assert {len(batch) for batch in sampler} == {6}


def test_the_configuration_lists_every_parameter_with_its_default():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "dml.samplers.hard_class.HardClassSampler"
    assert config.pop("_partial_") is True
    assert config.pop("seed") == "${seed}"
    assert config == {
        "classes_per_batch": 64,
        "images_per_class": HardClassSampler.__init__.__defaults__[0],
        "class_embeddings": None,
        "candidate_classes": HardClassSampler.__init__.__kwdefaults__["candidate_classes"],
        "batches_per_epoch": None,
    }
