"""Faults that are planted in training images: which images they hit, and how many."""

from collections import Counter

import numpy as np
import pytest

from dml.data.planted_faults import PlantedFaults, plant_faults, read_planted_faults
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

CLASSES, IMAGES = 40, 30


@pytest.fixture(scope="module")
def table() -> ImageTable:
    """40 training classes of 30 images in 8 groups, and as many of test."""
    labels = np.repeat(np.arange(2 * CLASSES), IMAGES)
    return ImageTable(
        np.array([f"{row}.png" for row in range(len(labels))]),
        np.stack([labels, labels // 5], axis=1),
        np.where(labels < CLASSES, "train", "test"),
        ("class", "group"),
    )


def plant(table: ImageTable, faults: PlantedFaults) -> ImageTable:
    return plant_faults(table, faults)[0]


def images_by_class(table: ImageTable) -> list[int]:
    return sorted(Counter(table.labels[table.split == "train", 0].tolist()).values())


@pytest.mark.parametrize("share", [0.1, 0.2, 1.0])
def test_a_share_of_the_labels_is_of_another_class(table: ImageTable, share: float) -> None:
    noisy = plant(table, PlantedFaults(label_noise=share))
    changed = noisy.labels[:, 0] != table.labels[:, 0]
    assert changed.sum() == plant_faults(table, PlantedFaults(label_noise=share))[1] == share * CLASSES * IMAGES
    assert (table.split[changed] == "train").all()
    assert noisy.labels[:, 0][table.split == "train"].max() < CLASSES  # no class of the test
    np.testing.assert_array_equal(noisy.labels[:, 1], noisy.labels[:, 0] // 5)
    np.testing.assert_array_equal(noisy.paths, table.paths)


def test_each_other_class_is_as_likely(table: ImageTable) -> None:
    shifts: Counter[int] = Counter()
    for seed in range(30):
        noisy = plant(table, PlantedFaults(label_noise=1.0, seed=seed))
        shifts.update(((noisy.labels[:, 0] - table.labels[:, 0]) % CLASSES)[table.split == "train"].tolist())
    expected = 30 * CLASSES * IMAGES / (CLASSES - 1)
    assert sorted(shifts) == list(range(1, CLASSES))
    # chi-squared with 38 degrees of freedom: below 80 with a probability of 0.9999
    assert sum((count - expected) ** 2 / expected for count in shifts.values()) < 80


def test_a_long_tail_has_equal_ratios(table: ImageTable) -> None:
    tailed = plant(table, PlantedFaults(long_tail=10))
    assert images_by_class(tailed) == sorted(round(IMAGES * 10 ** (-rank / (CLASSES - 1))) for rank in range(CLASSES))
    assert (tailed.split == "test").sum() == CLASSES * IMAGES
    known = dict(zip(table.paths.tolist(), table.labels.tolist(), strict=True))
    assert all(known[path] == label for path, label in zip(tailed.paths.tolist(), tailed.labels.tolist(), strict=True))


def test_a_class_keeps_two_images(table: ImageTable) -> None:
    assert images_by_class(plant(table, PlantedFaults(thinning=3))) == [10] * CLASSES
    assert images_by_class(plant(table, PlantedFaults(thinning=1000))) == [2] * CLASSES
    single = table.take(
        np.flatnonzero((np.arange(len(table)) % IMAGES == 0) | (table.labels[:, 0] > 0)).astype(np.int64)
    )
    assert images_by_class(plant(single, PlantedFaults(thinning=1000)))[:2] == [1, 2]


def test_the_draws_are_a_function_of_the_seed(table: ImageTable) -> None:
    def labels(seed: int) -> list[list[int]]:
        return plant(table, PlantedFaults(0.1, 3, seed=seed)).labels.tolist()

    assert labels(1) == labels(1) != labels(2)


def test_nothing_planted_changes_nothing(table: ImageTable) -> None:
    same = plant(table, read_planted_faults({"seed": 3}))
    np.testing.assert_array_equal(same.labels, table.labels)


WRONG = {
    "label_nose": (
        {"label_nose": 0.1},
        "dataset.planted.label_nose: unknown; it has label_noise, .* nearest: label_noise",
    ),
    "text": ({"label_noise": "much"}, "dataset.planted.label_noise=much: expected a number"),
    "seed": ({"seed": 0.5}, "dataset.planted.seed=0.5: expected a number"),
    "negative": ({"seed": -1}, "dataset.planted.seed=-1: expected 0 or more"),
    "share": ({"label_noise": 10}, "dataset.planted.label_noise=10: expected a share from 0 to 1"),
    "tail": ({"long_tail": 0.1}, "dataset.planted.long_tail=0.1: expected 1 or more, such as 3"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_faulty_settings_are_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_planted_faults(settings)


def test_one_class_has_no_other_label(table: ImageTable) -> None:
    alone = table.take(np.flatnonzero((table.labels[:, 0] == 0) | (table.split == "test")).astype(np.int64))
    with pytest.raises(InputError, match="there is no second training class"):
        plant(alone, PlantedFaults(label_noise=0.1))
