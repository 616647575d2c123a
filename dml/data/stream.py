"""The endless, reproducible and resumable stream of a run's training batches."""

from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from dml.data.dataset import Batch, BatchDataset, Draw
from dml.data.worker_processes import choose_start_method, pause_before_forks
from dml.runtime.configuration import dotted_name, naming
from dml.runtime.errors import InputError
from dml.runtime.processes import follow_parent


class BatchSampler(Protocol):
    """An iterable over the batches of an epoch, as lists of rows; they depend only on settings, seed and epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose batches the next iteration yields."""

    def __iter__(self) -> Iterator[list[int]]: ...

    def __len__(self) -> int: ...


class BatchStream:
    """An endless iterable over the batches of a run, epoch after epoch of the sampler, which can start at any batch.

    Batch t depends only on (seed, t): its rows are those of the sampler's epoch t // len(sampler), and the transform of
    each image is seeded by (seed, epoch, number of the batch in the epoch, position in the batch). A run that is
    resumed at batch t therefore continues with the batches of the uninterrupted run, with any number of workers. Under
    DDP each rank gets its contiguous share of every batch.

    Workers load batches ahead of time, those of the next epoch too. They stop at multiples of ``pause_every`` batches,
    because the sampler may change there, and at the end of the run. ``wait_seconds`` are those of the training.

    For Lightning a run is one long epoch: `__len__` is a number that no run reaches, and `state_dict` is the position.

    Args:
        pause_every: number of batches, a multiple of the epoch's, after which the sampler may change; None if it never
            changes.
        ends_after: number of batches of the run; None if it isn't known.
    """

    def __init__(
        self,
        dataset: BatchDataset,
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
        # Without a generator, the loader would draw from the global one at the start of each iteration.
        self.loader = DataLoader(
            dataset,
            batch_sampler=self.batches,
            collate_fn=dataset.collate,
            worker_init_fn=follow_parent,
            generator=torch.Generator().manual_seed(seed),
            persistent_workers=loader.get("num_workers", 0) > 0,
            multiprocessing_context=choose_start_method(loader.get("num_workers", 0)),
            **loader,
        )

    def __len__(self) -> int:
        return 2**60

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.batches.first, self.batches.stop = self.position, self._next_pause()
            if self.loader.num_workers:
                pause_before_forks()
            loaded = iter(self.loader)
            while (batch := self._next(loaded)) is not None:
                self.position += 1
                yield batch
            if self.batches.error is not None:
                self.close()
                raise self.batches.error

    def _next_pause(self) -> int | None:
        """Return the number of the batch before which the workers stop; None if they never stop."""
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

    def close(self) -> None:
        """End the workers, which would otherwise wait for more batches as long as the process lives.

        PyTorch ends them when the garbage collector finds the iterator, but by then their queues are closed, and it
        waits five seconds for each. Lightning does the same with the loaders that it knows.
        """
        iterator: Any = self.loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
            self.loader._iterator = None

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches that were handed out."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches that were handed out before ``state`` was saved."""
        self.position = state["position"]


class _Batches:
    """The batches of a run from ``first`` to ``stop``, as lists of `Draw`, of which each has this rank's share."""

    def __init__(self, sampler: BatchSampler, seed: int, rank: int, world_size: int) -> None:
        self.sampler, self.seed, self.rank, self.world_size = sampler, seed, rank, world_size
        self.first = 0
        self.stop: int | None = None
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[list[Draw]]:
        try:
            yield from islice(self._iterate(), None if self.stop is None else self.stop - self.first)
        except Exception as error:
            self.error = error  # raised here, workers that the loader is starting would wait for batches for ever

    def _iterate(self) -> Iterator[list[Draw]]:
        epoch, number = divmod(self.first, len(self.sampler))
        while True:
            yield from islice(self._iterate_epoch(epoch), number, None)
            epoch, number = epoch + 1, 0

    def _iterate_epoch(self, epoch: int) -> Iterator[list[Draw]]:
        count = 0
        with naming("sampler", self.sampler):
            self.sampler.set_epoch(epoch)
            for number, rows in enumerate(self.sampler):
                yield self._take_share(rows, epoch, number)
                count += 1
        if count != len(self.sampler):
            raise InputError(
                f"sampler: {dotted_name(self.sampler)} gave {count} batches in epoch {epoch}, "
                f"expected {len(self.sampler)} as its len() says"
            )

    def _take_share(self, rows: list[int], epoch: int, number: int) -> list[Draw]:
        """Return this rank's share of a batch, each row with the numbers that seed its transform."""
        if len(rows) % self.world_size:
            raise InputError(
                f"a batch of {len(rows)} images can't be divided among {self.world_size} processes; "
                f"sampler.* must make it a multiple of {self.world_size}"
            )
        share = len(rows) // self.world_size
        positions = range(self.rank * share, (self.rank + 1) * share)
        return [(rows[position], (self.seed, epoch, number, position)) for position in positions]
