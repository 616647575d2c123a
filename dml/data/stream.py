from collections.abc import Iterator, Sized
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

    To Lightning a run is one long epoch: `__len__` is out of reach, and the position is `state_dict`.

    Args:
        dataset: indexed by `Draw`.
        sampler: yields lists of its rows.
        seed: of the transforms' draws.
        rank, world_size: this process among all.
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
        **loader: Any,
    ) -> None:
        self.batches = _EpochBatches(sampler, seed, rank, world_size)
        self.position = 0
        self.waits, self.wait_seconds = 0, 0.0
        # an own generator: the loader would otherwise draw from the global one at every epoch
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
        return self.position // len(self.batches)

    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.batches.start(*divmod(self.position, len(self.batches)))
            epoch = iter(self.loader)
            while (batch := self._next(epoch)) is not None:
                self.position += 1
                yield batch
            if self.position % len(self.batches):
                raise RuntimeError(f"the sampler promised {len(self.batches)} batches an epoch and gave fewer")

    def _next(self, epoch: Iterator[Batch]) -> Batch | None:
        started = perf_counter()
        batch = next(epoch, None)
        self.waits += batch is not None
        self.wait_seconds += perf_counter() - started
        return batch

    def state_dict(self) -> dict[str, int]:
        """The number of batches that were handed out."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on after the batches that were handed out."""
        self.position = state["position"]


class _EpochBatches(Sized):
    """The draws of one epoch's batches from batch ``first`` on, this rank's share of each."""

    def __init__(self, sampler: BatchSampler, seed: int, rank: int, world_size: int) -> None:
        self.sampler, self.seed, self.rank, self.world_size = sampler, seed, rank, world_size
        self.epoch = self.first = 0

    def start(self, epoch: int, first: int) -> None:
        self.epoch, self.first = epoch, first
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Draw]]:
        for number, rows in enumerate(self.sampler):
            if number < self.first:
                continue
            if len(rows) % self.world_size:
                raise InputError(
                    f"a batch of {len(rows)} images can't be divided among {self.world_size} processes; "
                    f"sampler.* must make it a multiple of {self.world_size}"
                )
            share = len(rows) // self.world_size
            places = range(self.rank * share, (self.rank + 1) * share)
            yield [(rows[place], (self.seed, self.epoch, number, place)) for place in places]
