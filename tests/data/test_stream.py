from collections.abc import Iterator
from itertools import islice
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from dml.data import worker_processes
from dml.data.dataset import Batch, ImageDataset
from dml.data.stream import BatchStream
from dml.data.table import ImageTable
from dml.data.worker_processes import pause_before_forks
from dml.runtime.errors import InputError
from dml.training.data import ImageLoader, check_sampler

BATCHES, SIZE, ROWS = 3, 4, 12


class Sampler:
    """An epoch is a permutation of the rows, in batches."""

    def __init__(self, batches: int = BATCHES) -> None:
        self.batches = batches
        self.epoch = 0
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        rows = np.random.default_rng(self.epoch).permutation(ROWS)
        for batch in range(self.batches):
            yield rows[batch * SIZE : (batch + 1) * SIZE].tolist()


def noise(image: Tensor) -> Tensor:
    return (image + torch.randint(0, 200, image.shape)).to(torch.uint8)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ImageTable:
    folder = tmp_path_factory.mktemp("images")
    for i in range(ROWS):
        Image.new("RGB", (3, 2), (i, i, i)).save(folder / f"{i}.png")
    return ImageTable(
        paths=np.array([f"{folder}/{i}.png" for i in range(ROWS)]),
        labels=np.arange(ROWS)[:, None] // 2,
        split=np.array(["train"] * ROWS),
        levels=("class",),
    )


@pytest.fixture(scope="module")
def dataset(table: ImageTable) -> ImageDataset:
    return ImageDataset(table, noise)


def stream(dataset: ImageDataset, position: int = 0, **settings: Any) -> BatchStream:
    built = BatchStream(dataset, settings.pop("sampler", None) or Sampler(), **{"seed": 0} | settings)
    built.load_state_dict({"position": position})
    return built


def first(batches: BatchStream, count: int) -> list[Batch]:
    return list(islice(batches, count))


def assert_equal(batches: list[Batch], expected: list[Batch]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        for part, wanted in zip(batch, other, strict=True):
            assert torch.equal(part, wanted)


@pytest.fixture(scope="module")
def uninterrupted(dataset: ImageDataset) -> list[Batch]:
    """Four epochs."""
    return first(stream(dataset), 4 * BATCHES)


# order


def test_batches_are_those_of_the_sampler_epoch_after_epoch(uninterrupted: list[Batch]) -> None:
    sampler, rows = Sampler(), []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        rows += list(sampler)
    assert [batch[2].tolist() for batch in uninterrupted] == rows
    assert [batch[1].flatten().tolist() for batch in uninterrupted] == [[row // 2 for row in b] for b in rows]
    assert all(images.shape == (SIZE, 3, 2, 3) for images, _, _ in uninterrupted)


def test_epochs_follow_set_epoch(dataset: ImageDataset) -> None:
    sampler = Sampler()
    batches = stream(dataset, position=BATCHES + 1, sampler=sampler)
    assert len([*islice(batches, 2 * BATCHES)]) == 2 * BATCHES
    assert sampler.epochs == [1, 2, 3]


def test_an_image_is_drawn_anew_in_each_epoch(uninterrupted: list[Batch]) -> None:
    drawn: dict[int, list[Tensor]] = {}
    for images, _, rows in uninterrupted:
        for image, row in zip(images, rows.tolist(), strict=True):
            drawn.setdefault(row, []).append(image)
    for images in drawn.values():
        assert len(images) == 4
        assert len({tuple(image.flatten().tolist()) for image in images}) == 4


def test_the_seed_changes_the_draws_alone(dataset: ImageDataset, uninterrupted: list[Batch]) -> None:
    others = first(stream(dataset, seed=1), len(uninterrupted))
    for batch, other in zip(uninterrupted, others, strict=True):
        assert torch.equal(batch[2], other[2])
        assert not torch.equal(batch[0], other[0])


def test_the_stream_leaves_the_global_generator_alone(dataset: ImageDataset) -> None:
    state = torch.get_rng_state()
    first(stream(dataset), 2 * BATCHES)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_global_generator_has_no_influence(dataset: ImageDataset, uninterrupted: list[Batch]) -> None:
    torch.manual_seed(99)
    assert_equal(first(stream(dataset), len(uninterrupted)), uninterrupted)


# workers


def test_workers_change_nothing(dataset: ImageDataset, uninterrupted: list[Batch]) -> None:
    batches = stream(dataset, num_workers=2)
    assert_equal(first(batches, len(uninterrupted)), uninterrupted)
    assert batches.position == len(uninterrupted)


def test_workers_change_nothing_after_a_resumption(dataset: ImageDataset, uninterrupted: list[Batch]) -> None:
    """They load ahead; only what was handed out counts, also if the same stream is iterated again."""
    batches = stream(dataset, num_workers=2)
    first(batches, 4)
    state = batches.state_dict()
    assert state == {"position": 4}
    assert_equal(first(batches, 4), uninterrupted[4:8])
    resumed = stream(dataset, num_workers=1)
    resumed.load_state_dict(state)
    assert_equal(first(resumed, 4), uninterrupted[4:8])


def test_an_unreadable_image_in_a_worker_is_an_input_error(table: ImageTable, tmp_path: Path) -> None:
    broken = ImageTable(
        np.array([*table.paths[:-1], str(tmp_path / "none.png")]), table.labels, table.split, table.levels
    )
    with pytest.raises(InputError, match=r"none\.png: no such file"):
        first(stream(ImageDataset(broken, noise), num_workers=1), BATCHES)


class Marks:
    """A transform that leaves a file for each image that a worker has made, in the order of their rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, image: Tensor) -> Tensor:
        (self.folder / f"{len(self.made())}").touch()
        return image

    def made(self) -> list[Path]:
        return list(self.folder.iterdir())

    def comes_to(self, count: int, seconds: float) -> bool:
        ends = monotonic() + seconds
        while len(self.made()) < count and monotonic() < ends:
            sleep(0.01)
        return len(self.made()) >= count


def test_workers_go_on_into_the_next_epoch(table: ImageTable, tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    batches = iter(stream(ImageDataset(table, marks), num_workers=1, prefetch_factor=2))
    for _ in range(BATCHES):
        next(batches)
    assert marks.comes_to((BATCHES + 1) * SIZE, seconds=60)


@pytest.mark.parametrize("limit", [{"pause_every": 2 * BATCHES}, {"ends_after": 2 * BATCHES}])
@pytest.mark.distributed
def test_workers_stop_where_what_follows_is_unknown(table: ImageTable, tmp_path: Path, limit: dict[str, int]) -> None:
    marks = Marks(tmp_path)
    batches = iter(stream(ImageDataset(table, marks), num_workers=1, prefetch_factor=2, **limit))
    for _ in range(2 * BATCHES):
        next(batches)
    assert not marks.comes_to(2 * BATCHES * SIZE + 1, seconds=0.3)
    next(batches)
    assert marks.comes_to((2 * BATCHES + 1) * SIZE, seconds=60)


@pytest.mark.distributed
@examples(40)
@given(
    position=st.integers(0, 4 * BATCHES - 1),
    pause_every=st.sampled_from([None, BATCHES, 2 * BATCHES]),
    ends_after=st.none() | st.integers(1, 4 * BATCHES),
)
def test_pauses_change_nothing(
    dataset: ImageDataset, uninterrupted: list[Batch], position: int, pause_every: int | None, ends_after: int | None
) -> None:
    batches = stream(dataset, position, pause_every=pause_every, ends_after=ends_after)
    assert_equal(first(batches, 4 * BATCHES - position), uninterrupted[position:])


def test_a_sampler_may_change_at_a_pause(dataset: ImageDataset, uninterrupted: list[Batch]) -> None:
    class Shifts(Sampler):
        shift = 0

        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch + self.shift)

    sampler = Shifts()
    batches = iter(stream(dataset, sampler=sampler, num_workers=1, pause_every=BATCHES))
    for batch in range(BATCHES):
        assert torch.equal(next(batches)[2], uninterrupted[batch][2])
    sampler.shift = 2
    for batch in range(BATCHES):
        assert torch.equal(next(batches)[2], uninterrupted[3 * BATCHES + batch][2])


# position


@examples(40)
@given(position=st.integers(0, 4 * BATCHES - 1), stop=st.integers(0, 4 * BATCHES))
def test_resumed_anywhere_it_goes_on_as_the_uninterrupted_stream(
    dataset: ImageDataset, uninterrupted: list[Batch], position: int, stop: int
) -> None:
    batches = stream(dataset, position)
    expected = uninterrupted[position : max(position, stop)]
    assert_equal(first(batches, len(expected)), expected)
    assert batches.state_dict() == {"position": position + len(expected)}
    again = stream(dataset)
    again.load_state_dict(batches.state_dict())
    rest = uninterrupted[position + len(expected) :]
    assert_equal(first(again, len(rest)), rest)


def test_the_state_counts_what_was_handed_out(dataset: ImageDataset) -> None:
    batches = stream(dataset)
    assert batches.state_dict() == {"position": 0}
    iterator = iter(batches)
    for position in range(1, 2 * BATCHES):
        next(iterator)
        assert batches.state_dict() == {"position": position}


def test_resuming_loads_no_image_of_the_batches_that_are_done(table: ImageTable) -> None:
    seen: list[int] = []

    def remember(image: Tensor) -> Tensor:
        seen.append(int(image[0, 0, 0]))
        return image

    (batch,) = first(stream(ImageDataset(table, remember), position=5 * BATCHES + 2), 1)
    assert seen == batch[2].tolist()


def test_it_is_one_long_epoch(dataset: ImageDataset) -> None:
    assert len(stream(dataset)) > 10**15


# waiting


def test_waits_are_counted(table: ImageTable) -> None:
    def slow(image: Tensor) -> Tensor:
        sleep(0.002)
        return image

    batches = stream(ImageDataset(table, slow))
    assert (batches.waits, batches.wait_seconds) == (0, 0.0)
    for _ in islice(batches, 2 * BATCHES):
        sleep(0.02)  # a step, which is no wait
    assert batches.waits == 2 * BATCHES
    least = 2 * BATCHES * SIZE * 0.002
    assert least <= batches.wait_seconds < least + 2 * BATCHES * 0.02


# ranks


@given(world_size=st.sampled_from([1, 2, 4]), position=st.integers(0, 2 * BATCHES))
def test_the_ranks_shares_make_up_the_whole_batch(
    dataset: ImageDataset, uninterrupted: list[Batch], world_size: int, position: int
) -> None:
    shares = [first(stream(dataset, position, rank=rank, world_size=world_size), BATCHES) for rank in range(world_size)]
    whole: list[Any] = [
        tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in zip(*shares, strict=True)
    ]
    assert_equal(whole, uninterrupted[position : position + BATCHES])
    assert {len(batch[2]) for share in shares for batch in share} == {SIZE // world_size}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("rank", [0, 2])
def test_an_uneven_division(dataset: ImageDataset, rank: int, num_workers: int) -> None:
    with pytest.raises(InputError, match="a batch of 4 images can't be divided among 3 processes"):
        first(stream(dataset, rank=rank, world_size=3, num_workers=num_workers), 1)


def test_a_sampler_that_breaks_its_promise_is_found_out(dataset: ImageDataset) -> None:
    class Short(Sampler):
        def __len__(self) -> int:
            return self.batches + 1

    with pytest.raises(InputError, match=r"^sampler: .*\.Short gave 3 batches in epoch 0, expected 4 as its len"):
        first(stream(dataset, sampler=Short()), 4)


@pytest.mark.parametrize("method", ["set_epoch", "__iter__", "__len__"])
def test_a_sampler_without_one_of_its_methods_is_refused(method: str) -> None:
    methods = {name: value for name, value in vars(Sampler).items() if name in ("set_epoch", "__iter__", "__len__")}
    check_sampler(type("Whole", (), methods)())
    del methods[method]
    with pytest.raises(InputError, match=rf"^sampler: test_stream\.Mine has no {method}, expected set_epoch"):
        check_sampler(type("Mine", (), methods)())


@pytest.mark.distributed
def test_closed_workers_end_and_a_new_iteration_starts_others(dataset: ImageDataset) -> None:
    batches = stream(dataset, num_workers=2)
    before = set(active_children())
    expected = [next(iter(stream(dataset))), *islice(stream(dataset), 1, 2)]
    iteration = iter(batches)
    first_batch = next(iteration)
    workers = set(active_children()) - before
    assert len(workers) == 2
    batches.close()
    assert not workers & set(active_children())
    batches.close()  # twice does nothing
    second_batch = next(iter(batches))
    for found, batch in zip((first_batch, second_batch), expected, strict=True):
        assert all(map(torch.equal, found, batch))
    batches.close()


def test_a_stream_without_workers_closes(dataset: ImageDataset) -> None:
    batches = stream(dataset)
    next(iter(batches))
    batches.close()


@pytest.mark.distributed
def test_workers_start_after_a_pause(dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is forked beside a thread of gloo at work may hang."""
    events: list[str] = []
    start = BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: (events.append("start"), start(process))[1])
    monkeypatch.setattr(worker_processes, "sleep", lambda _: events.append("pause"))
    monkeypatch.setattr(worker_processes.sys, "version_info", (3, 11, 7))
    for is_joined in (True, False):
        group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda is_joined=is_joined: is_joined)
        monkeypatch.setattr(worker_processes, "torch", SimpleNamespace(distributed=group))
        loader = ImageLoader([1, 2, 3], num_workers=2)  # type: ignore[arg-type]
        list(loader)
        batches = stream(dataset, num_workers=1)
        first(batches, 2)
        batches.close()
    assert events == ["pause", "start", "start", "pause", "start", *["start"] * 3]
    group.is_initialized = lambda: True
    monkeypatch.setattr(worker_processes.sys, "version_info", (3, 12, 0))
    pause_before_forks()
    assert events.count("pause") == 2
