"""What holds for every sampler of conf/sampler, found by its YAML."""

from collections import Counter
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from configurations import CONF, compose
from hydra.utils import instantiate
from torch.utils.data import DataLoader

from dml.data.stream import BatchSampler

NAMES = sorted(path.stem for path in (CONF / "sampler").glob("*.yaml"))

COUNT = 3000
CLASSES = np.random.default_rng(0).permutation(np.arange(COUNT) % 600)
LABELS = np.stack([CLASSES, CLASSES % 12], axis=1)  # classes of five, twelve super-classes of fifty


@cache
def table() -> np.ndarray:
    """For each row four of its class and twelve of others."""
    rng = np.random.default_rng(1)
    rows = []
    for row, label in enumerate(CLASSES):
        alike = np.flatnonzero(label == CLASSES)
        others = np.flatnonzero(label != CLASSES)
        rows.append(np.concatenate([alike[alike != row], rng.choice(others, 12, replace=False)]))
    return np.array(rows)


def sampler(name: str, **overrides: Any) -> Any:
    config = compose(f"sampler={name}", *(f"{key}={value}" for key, value in overrides.items()))
    built = instantiate(config.sampler)(LABELS)
    if hasattr(built, "set_neighbors"):
        built.set_neighbors(table())
    return built


def epoch(built: BatchSampler, number: int) -> list[list[int]]:
    built.set_epoch(number)
    return list(built)


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_is_as_long_as_promised_and_a_function_of_seed_and_number(name: str) -> None:
    first, same, other = sampler(name), sampler(name), sampler(name, seed=1)
    batches = epoch(first, 2)
    assert len(batches) == len(first) > 8
    assert epoch(same, 2) == batches == list(first)
    assert batches not in (epoch(first, 3), epoch(other, 2))
    assert len({len(batch) for batch in batches}) == 1
    assert all(type(row) is int and 0 <= row < COUNT for batch in batches for row in batch)


@pytest.mark.parametrize("name", NAMES)
def test_without_set_epoch_each_loop_is_the_next_epoch(name: str) -> None:
    counting, expected = sampler(name), [epoch(sampler(name), number) for number in range(3)]
    iter(counting)  # which no loop uses
    assert list(counting) == expected[0]
    assert list(islice(counting, 2)) == expected[1][:2]  # a loop that is left
    assert list(counting) == expected[2]
    counting.set_epoch(1)
    assert list(counting) == list(counting) == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_goes_on_to_new_epochs(workers: int) -> None:
    loader = DataLoader(
        range(COUNT), batch_sampler=sampler("class_balanced"), num_workers=workers, persistent_workers=workers > 0
    )
    loaded = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert loaded == [epoch(sampler("class_balanced"), number) for number in range(2)]


class Recorder(pl.LightningModule):
    """A module that keeps the batches of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.batches = torch.nn.Linear(1, 1), list[list[int]]()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        self.batches.append(batch.tolist())
        return self.layer(batch[:1, None].float()).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
def test_lightnings_own_trainer_goes_on_to_new_epochs() -> None:
    module, quiet = Recorder(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, DataLoader(range(COUNT), batch_sampler=sampler("class_balanced")))
    assert module.batches == [rows for number in range(2) for rows in epoch(sampler("class_balanced"), number)]


def test_all_images_of_a_class_are_used_in_a_plain_loop() -> None:
    labels = np.repeat(np.arange(20), 500)
    counting = instantiate(compose("sampler=class_balanced", "sampler.batches_per_epoch=50").sampler)(labels)
    drawn = {row for _ in range(10) for batch in counting for row in batch}
    assert sum(row < 500 for row in drawn) == 500


@pytest.mark.parametrize("name", NAMES)
def test_no_row_comes_twice_in_a_batch_if_no_class_is_short(name: str) -> None:
    assert all(max(Counter(batch).values()) == 1 for batch in sampler(name))


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_is_not_negative(name: str) -> None:
    with pytest.raises(ValueError, match="epoch=-1"):
        sampler(name).set_epoch(-1)


@pytest.mark.parametrize(
    ("name", "classes", "images"),
    [("n_pair", 64, 2), ("n_group", 32, 4), ("hierarchical", 64, 4), ("image_balanced", 64, 4), ("hard_class", 64, 2)],
)
def test_presets_give_the_papers_batches(name: str, classes: int, images: int) -> None:
    for batch in sampler(name):
        assert sorted(Counter(CLASSES[batch].tolist()).values()) == [images] * classes


def test_local_neighborhoods_of_the_thesis_are_seven_groups_of_seventeen_and_one_of_nine() -> None:
    built = sampler("local_neighborhood")
    for number in range(len(built)):
        assert [1 + len(members) for _, members in built.groups(number)] == [17] * 7 + [9]
