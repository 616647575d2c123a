"""Samplers of images with several labels: a batch has images of each drawn label, and none twice."""

import numpy as np
import pytest
import torch

from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError
from dml.samplers.class_balanced import ClassBalancedSampler
from dml.samplers.hard_class import HardClassSampler
from dml.samplers.hierarchical import HierarchicalSampler
from dml.samplers.image_balanced import ImageBalancedSampler
from dml.samplers.local_neighborhood import LocalNeighborhoodSampler, hard_shares


def draw_sets(seed: int, images: int = 60, labels: int = 8, width: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sets = np.full((images, 1, width), -1)
    for row in sets[:, 0]:
        size = rng.integers(1, width + 1)
        row[:size] = rng.choice(labels, size, replace=False)
    return sets


def draw_neighbors(images: int = 60) -> np.ndarray:
    others = (np.delete(np.arange(images), row) for row in range(images))
    return np.stack([np.random.default_rng(row).permutation(rows)[:5] for row, rows in enumerate(others)])


SAMPLERS = [ClassBalancedSampler, HardClassSampler, ImageBalancedSampler]


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("seed", range(4))
def test_each_batch_has_images_of_each_drawn_label_and_none_twice(kind, seed: int) -> None:  # type: ignore[no-untyped-def]
    sets = draw_sets(seed)
    sampler = kind(sets, 4, 3, seed=seed)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = [*sampler]
        assert batches == [*sampler]
        for batch in batches:
            assert len({*batch}) == len(batch) == 12
            parts = [sets[batch[start : start + 3], 0] for start in range(0, 12, 3)]
            shared = [{*range(8)}.intersection(*({*row.tolist()} for row in part)) for part in parts]
            assert all(shared)  # 60 images have more of each label than a batch


@pytest.mark.parametrize("kind", SAMPLERS)
def test_one_label_an_image_gives_the_same_batches(kind) -> None:  # type: ignore[no-untyped-def]
    labels = np.random.default_rng(0).integers(0, 6, 50)
    padded = np.stack([np.full(50, -1), labels], axis=1)[:, None]
    assert [*kind(labels, 3, 2)] == [*kind(padded, 3, 2)]


def test_labels_are_drawn_equally_often() -> None:
    sets = draw_sets(0)
    sampler = ClassBalancedSampler(sets, 2, 2, batches_per_epoch=400)
    numbers = np.zeros(8)
    for batch in sampler:
        for start in (0, 2):
            for label in {*sets[batch[start], 0].tolist()} & {*sets[batch[start + 1], 0].tolist()} - {-1}:
                numbers[label] += 1
    assert numbers.min() >= 100  # each is drawn 100 times; pairs may share a further one


def test_a_label_inside_another_leaves_room_for_other_images() -> None:
    sets = np.array([[[0, 1]], [[0, 1]], [[2, -1]], [[2, -1]]])
    for batch in ClassBalancedSampler(sets, 2, 2, batches_per_epoch=9):
        assert len({*batch}) == 4


def test_an_image_is_hard_by_each_of_its_labels() -> None:
    """Labels 1 and 2 share an image that lies at label 0's, label 3 lies elsewhere."""
    sets = np.array([[[0, -1]], [[0, -1]], [[1, 2]], [[1, -1]], [[2, -1]], [[3, -1]], [[3, -1]]])
    positions = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 4)
    sampler = HardClassSampler(sets, 2, 2, batches_per_epoch=300)
    sampler.set_embedding_bank(EmbeddingBank(positions))
    partners = [set(batch[2:]) for batch in sampler if set(batch[:2]) == {0, 1}]
    assert {frozenset(rows) for rows in partners} == {frozenset({2, 3}), frozenset({2, 4})}


def test_local_neighborhoods_call_images_similar_that_share_a_label() -> None:
    sets = draw_sets(1, labels=12)
    neighbors = draw_neighbors()
    sampler = LocalNeighborhoodSampler(sets, neighbors, 18)
    for number in range(3):
        groups = sampler.groups(number)
        assert len({row for center, members in groups for row in (center, *members)}) == 18
        for center, members in groups:
            related = [bool({*sets[center, 0]} & {*sets[row, 0]} - {-1}) for row in members]
            assert {*related} == {True, False}
    batch = next(iter(sampler))
    pairs = [(i, j) for i in batch for j in batch if i != j]
    same = {(i, j) for i, j in pairs if {*sets[i, 0]} & {*sets[j, 0]} - {-1}}
    near = {(i, j) for i, j in pairs if j in neighbors[i]}
    assert hard_shares(sets, neighbors, batch).usable_positives == pytest.approx(len(same & near) / len(same))


def test_one_label_an_image_gives_the_same_neighborhoods() -> None:
    labels = np.random.default_rng(0).integers(0, 6, 60)
    padded = np.stack([np.full(60, -1), labels], axis=1)[:, None]
    neighbors = draw_neighbors()
    plain, same = (LocalNeighborhoodSampler(part, neighbors, 55) for part in (labels, padded))
    assert [*plain] == [*same]


def test_super_classes_need_single_labels() -> None:
    with pytest.raises(InputError, match=r"^sampler: needs a single label of each image; "):
        HierarchicalSampler(np.repeat(draw_sets(0), 2, axis=1), 1, 4, 2)
