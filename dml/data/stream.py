from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from dml.data.dataset import Batch, Draw, ImageDataset, collate
from dml.ops.errors import InputError


class BatchSampler(Protocol):
    """Yields an epoch's batches as lists of rows: a pure function of its settings, its seed and the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration yields."""

    def __iter__(self) -> Iterator[list[int]]: ...

    def __len__(self) -> int: ...


class BatchStream:
    """The batches of a run, one epoch of the sampler after the other without end, from any batch on.

    Batch t is a function of (seed, t): of the sampler's epoch t // len(sampler), and of draws seeded by
    (seed, epoch, batch, place in the batch). So a run resumed at batch t sees what the uninterrupted run saw,
    with any number of workers. Under DDP each rank gets its contiguous share of every batch.

    Workers load ahead, and go on into the next epoch while the last batches of one are used. They stop where what
    comes next isn't known yet, at the multiples of ``pause_every`` batches, and where the run ends.

    To Lightning a run is one long epoch: `__len__` is out of reach, and the position is `state_dict`.

    Args:
        dataset: indexed by `Draw`.
        sampler: yields lists of its rows.
        seed: of the transforms' draws.
        rank, world_size: this process among all.
        pause_every: batches, whole epochs, after each of which the sampler may change; None: it never does.
        ends_after: the batches of the run; None: nobody knows.
        loader: settings of the DataLoader (num_workers, pin_memory, ...).

    Attributes:
        waits, wait_seconds: how many batches were handed out, and how long their receiver waited for them.

    Raises:
        InputError: on iteration, if a batch can't be divided among the ranks.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        sampler: BatchSampler,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        pause_every: int | None = None,
        ends_after: int | None = None,
        **loader: Any,
    ) -> None:
        self.batches = _Batches(sampler, seed, rank, world_size)
        self.pause_every, self.ends_after = pause_every, ends_after
        self.position = 0
        self.waits, self.wait_seconds = 0, 0.0
        # an own generator: the loader would otherwise draw from the global one whenever it starts
        self.loader = DataLoader(
            dataset,
            batch_sampler=self.batches,
            collate_fn=collate,
            generator=torch.Generator().manual_seed(seed),
            persistent_workers=loader.get("num_workers", 0) > 0,
            **loader,
        )

    @property
    def epoch(self) -> int:
        """The sampler's epoch that the next batch belongs to."""
        return self.position // self.batches.batches_per_epoch

    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.batches.first, self.batches.stop = self.position, self._next_pause()
            loaded = iter(self.loader)
            while (batch := self._next(loaded)) is not None:
                self.position += 1
                yield batch

    def _next_pause(self) -> int | None:
        """The batch before which loading ahead stops."""
        pauses = [self.ends_after] if self.ends_after is not None and self.position < self.ends_after else []
        if self.pause_every:
            pauses.append((self.position // self.pause_every + 1) * self.pause_every)
        return min(pauses, default=None)

    def _next(self, loaded: Iterator[Batch]) -> Batch | None:
        started = perf_counter()
        batch = next(loaded, None)
        self.waits += batch is not None
        self.wait_seconds += perf_counter() - started
        return batch

    def state_dict(self) -> dict[str, int]:
        """The number of batches that were handed out."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on after the batches that were handed out."""
        self.position = state["position"]


class _Batches:
    """The draws of a run's batches from number ``first`` on, before ``stop`` if given; this rank's share of each."""

    def __init__(self, sampler: BatchSampler, seed: int, rank: int, world_size: int) -> None:
        self.sampler, self.seed, self.rank, self.world_size = sampler, seed, rank, world_size
        self.first = 0
        self.stop: int | None = None

    @property
    def batches_per_epoch(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, number = divmod(self.first, self.batches_per_epoch)
        stop = self.stop
        while stop is None or epoch * self.batches_per_epoch < stop:
            ends = None if stop is None else stop - epoch * self.batches_per_epoch
            yield from islice(self._of_epoch(epoch), number, ends)
            epoch, number = epoch + 1, 0

    def _of_epoch(self, epoch: int) -> Iterator[list[Draw]]:
        self.sampler.set_epoch(epoch)
        count = 0
        for number, rows in enumerate(self.sampler):
            yield self._share(rows, epoch, number)
            count += 1
        if count != self.batches_per_epoch:
            raise RuntimeError(f"the sampler promised {self.batches_per_epoch} batches an epoch and gave {count}")

    def _share(self, rows: list[int], epoch: int, number: int) -> list[Draw]:
        if len(rows) % self.world_size:
            raise InputError(
                f"a batch of {len(rows)} images can't be divided among {self.world_size} processes; "
                f"sampler.* must make it a multiple of {self.world_size}"
            )
        share = len(rows) // self.world_size
        places = range(self.rank * share, (self.rank + 1) * share)
        return [(rows[place], (self.seed, epoch, number, place)) for place in places]
