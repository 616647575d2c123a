"""What each of several processes gets of a sampler's batches, for every sampler of conf/sampler."""

from itertools import chain, islice
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from test_sampler_laws import CONF, LABELS, NAMES, table

from dml.data.dataset import BatchDataset, Draw, Item
from dml.data.stream import BatchStream
from dml.runtime.errors import InputError


class Rows(BatchDataset):
    """Items that are hardly more than their row."""

    def __getitem__(self, draw: Draw) -> Item:
        return torch.zeros(3, 1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.long), draw[0]


@pytest.fixture(params=NAMES)
def built(request: pytest.FixtureRequest) -> Any:
    """A sampler whose batches 2 and 3 divide, and whose epochs are short."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(f"sampler/{request.param}").sampler
    config["batch_size" if "batch_size" in config else "classes_per_batch"] = 12
    config.seed = 0
    if "batches_per_epoch" in config:
        config.batches_per_epoch = 8
    sampler = instantiate(config)(LABELS)
    if hasattr(sampler, "set_neighbors"):
        sampler.set_neighbors(table())
    return sampler


def share(built: Any, rank: int, count: int, first: int, batches: int) -> list[list[int]]:
    stream = BatchStream(Rows(), built, seed=0, rank=rank, world_size=count)
    stream.load_state_dict({"position": first})
    return [rows.tolist() for _, _, rows in islice(stream, batches)]


@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_are_disjoint_equal_and_make_up_the_batch(built: Any, count: int) -> None:
    # the last batches of an epoch and the first of the next: none is short, and no process has more of them
    around = len(built) - 5
    whole = share(built, 0, 1, around, 10)
    built.set_epoch(1)
    assert whole[5:] == list(islice(built, 5))
    parts = [share(built, rank, count, around, 10) for rank in range(count)]
    assert [list(chain(*own)) for own in zip(*parts, strict=True)] == whole  # one after the other, so all rows and once
    assert {len(rows) for part in parts for rows in part} == {len(whole[0]) // count}


def test_every_process_refuses_a_batch_that_cannot_be_divided(built: Any) -> None:
    size = len(share(built, 0, 1, 0, 1)[0])
    expected = f"a batch of {size} images can't be divided among 5 processes; .* a multiple of 5"
    for rank in range(5):
        with pytest.raises(InputError, match=expected):
            share(built, rank, 5, 0, 1)
