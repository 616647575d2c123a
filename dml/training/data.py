import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from dml.data.dataset import BatchDataset, ImageDataset, Item
from dml.data.images import LIMITS, ImageLimits
from dml.data.prepared.cache import CacheFolder
from dml.data.stream import BatchSampler, BatchStream
from dml.data.table import ImageTable
from dml.data.transforms import Pipeline
from dml.data.worker_processes import choose_start_method, pause_before_forks
from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError
from dml.runtime.processes import count_cores, count_processes, follow_parent, uses_cuda

Transform = Callable[[Tensor], Tensor]


MOST_WORKERS = 16
"""The largest number of workers of a process, as each of them holds batches in memory."""


@dataclass(frozen=True)
class LoaderSettings:
    """Values of ``data`` for the loaders, with a value for each ``auto``.

    With ``on_corrupt="skip"`` a training takes the next image of the class in the place of one that can't be read, and
    an evaluation excludes the image and counts it.
    """

    num_workers: int = 0
    on_corrupt: str = "raise"
    eval_batch_size: int = 128
    pin_memory: bool = False
    limits: ImageLimits = LIMITS


def choose_loader_settings(data: Mapping[str, Any], trainer: Mapping[str, Any]) -> LoaderSettings:
    """Return the settings of the data loaders, with a value for each ``auto``."""
    limits = ImageLimits.from_settings(data)
    unused = {"cache", "check_images", "max_list_bytes", *vars(limits)}
    settings = {str(key): value for key, value in data.items() if key not in unused}
    has_gpu = uses_cuda(trainer["accelerator"])
    if settings["num_workers"] == "auto":
        # with a GPU one less than the cores of a process; without one, training uses the CPU too
        most = min(MOST_WORKERS, _share_cores(count_processes(trainer)) - 1)
        settings["num_workers"] = max(1, most) if has_gpu else 1
    if settings["pin_memory"] == "auto":
        settings["pin_memory"] = has_gpu
    return LoaderSettings(**settings, limits=limits)


def _share_cores(processes: int) -> int:
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        return min(int(cores), count_cores())  # srun may bind a task to fewer cores than the job asked for
    return count_cores() // processes


def check_sampler(sampler: object) -> None:
    """Check that a sampler has the methods of a `BatchSampler`."""
    lacking = [method for method in ("set_epoch", "__iter__", "__len__") if not hasattr(type(sampler), method)]
    if lacking:
        raise InputError(
            f"sampler: {dotted_name(sampler)} has no {lacking[0]}, expected set_epoch(epoch), __iter__() and __len__()"
        )


class ImageLoader(DataLoader[Item | None]):
    """A loader whose iterators can be ended before they have loaded all images, see `BatchStream.close`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()  # they may outlive the loader, in an error's trace

    def _get_iterator(self) -> Any:
        if self.num_workers:
            pause_before_forks()
        iterator = super()._get_iterator()
        self.iterators.add(iterator)
        return iterator


class EvaluationData(LightningDataModule):
    """Loads the images of ``tested_on``, a split, for a test: each once and in the order of the table.

    Args:
        table: table of the data set.
        test_transform: function of an image (3, H, W) uint8 that returns the network's input (3, h, w) uint8.
        crops_transform: function that a test calls in place of ``test_transform`` to get V views (V, 3, h, w) of each
            image; None for one view.
        settings: settings of the data loaders.
        cache: folder with the decoded images of the data set; None if they aren't cached.
    """

    def __init__(
        self,
        table: ImageTable,
        *,
        test_transform: Transform,
        crops_transform: Transform | None = None,
        settings: LoaderSettings,
        cache: CacheFolder | None = None,
    ) -> None:
        super().__init__()
        self.table, self.settings, self.cache = table, settings, cache
        self.test_transform, self.crops_transform = test_transform, crops_transform or test_transform
        self.tested_on = "test"
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def test_dataloader(self) -> DataLoader[Item | None]:
        """Return a loader of the tested images."""
        return self._make_loader(self.table.select_evaluated(self.tested_on), self.crops_transform)

    def _make_loader(self, table: ImageTable, transform: Transform) -> DataLoader[Item | None]:
        """Make a loader of all images of a table; each of W processes gets every W-th image."""
        rank, world_size = self._rank_and_world_size()
        on_corrupt = "raise" if self.settings.on_corrupt == "raise" else "drop"
        rows, size = range(rank, len(table), world_size), self.settings.eval_batch_size
        dataset = self._make_dataset(table, transform, on_corrupt)
        num_workers = self._count_workers(dataset)
        loader = ImageLoader(
            dataset,
            # an empty batch without an image: Lightning would skip the loop, with its exchange of embeddings
            batch_sampler=[list(rows[start : start + size]) for start in range(0, max(1, len(rows)), size)],
            collate_fn=dataset.collate,
            worker_init_fn=follow_parent,
            num_workers=num_workers,
            multiprocessing_context=choose_start_method(num_workers),
            pin_memory=self.settings.pin_memory,
        )
        loader.iterators = self._iterators
        return loader

    def _rank_and_world_size(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002
        """End the workers of an evaluation that has failed: the process may go on with the next run of a sweep."""
        for iterator in [*self._iterators]:
            if hasattr(iterator, "_shutdown_workers"):  # one without workers has nothing to end
                iterator._shutdown_workers()

    def _count_workers(self, dataset: BatchDataset) -> int:  # noqa: ARG002
        return self.settings.num_workers

    def _make_dataset(self, table: ImageTable, transform: Transform, on_corrupt: str) -> BatchDataset:
        resize = transform.resize if isinstance(transform, Pipeline) else None
        cached_images = self.cache.find(table, resize, self.settings.limits) if self.cache else None
        return ImageDataset(table, transform, on_corrupt, cached_images, self.settings.limits)


class DataModule(EvaluationData):
    """Loads the batches of a training, and the images of its validations and its test.

    Args:
        table: table of the data set.
        train_transform: function of a training image (3, H, W) uint8 that returns the network's input (3, h, w) uint8.
        sampler: function that makes the batch sampler from the training labels (N, L).
        validated_on: name of the split that is validated, "val" or "test".
        seed: seed of the random numbers of ``train_transform``.
        **evaluation: the remaining arguments of `EvaluationData`.
    """

    stream: BatchStream

    def __init__(
        self,
        table: ImageTable,
        *,
        train_transform: Transform,
        sampler: Callable[..., BatchSampler],
        validated_on: str = "val",
        seed: int = 0,
        **evaluation: Any,
    ) -> None:
        super().__init__(table, **evaluation)
        self.validated_on, self.seed = validated_on, seed
        self.batches_between_bank_updates: int | None = None  # after each so many the sampler gets a new embedding bank
        self.train_table = table.subset("train").renumber()
        if not len(self.train_table):
            raise InputError("dataset: its train split is empty")
        self.train_transform = train_transform
        self.sampler = sampler(self.train_table.labels)
        check_sampler(self.sampler)

    def train_dataloader(self) -> BatchStream:
        """Return the stream of training batches, whose epochs follow each other without an end."""
        on_corrupt = "raise" if self.settings.on_corrupt == "raise" else "replace"
        num_batches = self.trainer.max_steps * self.trainer.accumulate_grad_batches if self.trainer else None
        dataset = self._make_dataset(self.train_table, self.train_transform, on_corrupt)
        rank, world_size = self._rank_and_world_size()
        self.stream = BatchStream(
            dataset,
            self.sampler,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            pause_every=self.batches_between_bank_updates,
            ends_after=num_batches,
            num_workers=self._count_workers(dataset),
            pin_memory=self.settings.pin_memory,
        )
        return self.stream

    def teardown(self, stage: str) -> None:
        """End the workers of the training when Lightning has ended it."""
        if stage == "fit":
            self.stream.close()

    def on_exception(self, exception: BaseException) -> None:
        """End the workers of a training that has failed."""
        super().on_exception(exception)
        if hasattr(self, "stream"):
            self.stream.close()

    def training_images(self) -> DataLoader[Item | None]:
        """Return a loader of the training images, each once, in order and with the transform of a test."""
        return self._make_loader(self.train_table, self.test_transform)

    def val_dataloader(self) -> DataLoader[Item | None]:
        """Return a loader of the validated images."""
        return self._make_loader(self.table.select_evaluated(self.validated_on), self.test_transform)
