from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from dml.data.cache import CacheFolder
from dml.data.dataset import ImageDataset, Item, collate
from dml.data.stream import BatchSampler, BatchStream
from dml.data.table import ImageTable
from dml.data.transforms import Pipeline
from dml.ops.errors import InputError

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LoaderSettings:
    """How images are loaded.

    Args:
        num_workers: processes that decode; 0 decodes in the main one.
        on_corrupt: "raise", or "skip": in training the next image of the class stands in, in evaluation the
            image is left out and counted.
        eval_batch_size: images a batch outside training, for each process.
        pin_memory: for GPUs.
    """

    num_workers: int = 0
    on_corrupt: str = "raise"
    eval_batch_size: int = 128
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("raise", "skip"):
            raise InputError(f"data.on_corrupt={self.on_corrupt}: raise or skip")


class EvaluationData(LightningDataModule):
    """A plain pass over a table's test rows, or those of another split.

    Args:
        table: the data set.
        test_transform: (3, H, W) uint8 -> (3, h, w) uint8.
        crops_transform: what a test takes instead of test_transform, if several views of each image -> (V, 3, h, w).
        settings: how images are loaded.
        cache: where the data set's decoded images are, if anywhere.

    Attributes:
        tested_on: the split that a test passes over.
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
        self.table = table
        self.test_transform = test_transform
        self.crops_transform = crops_transform or test_transform
        self.settings = settings
        self.cache = cache
        self.tested_on = "test"

    def test_dataloader(self) -> DataLoader[Item | None]:
        """The test rows, in order."""
        return self._once(self.table.evaluated(self.tested_on), self.crops_transform)

    def _once(self, table: ImageTable, transform: Transform) -> DataLoader[Item | None]:
        """Each row; under DDP every rank takes each world_size-th, in at least one batch, if an empty one."""
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        on_corrupt = "raise" if self.settings.on_corrupt == "raise" else "drop"
        rows, size = range(rank, len(table), world_size), self.settings.eval_batch_size
        return DataLoader(
            self._dataset(table, transform, on_corrupt),
            # Lightning passes over a loop without batches, and what its end shares with the other processes
            batch_sampler=[list(rows[start : start + size]) for start in range(0, max(1, len(rows)), size)],
            collate_fn=collate,
            num_workers=self.settings.num_workers,
            pin_memory=self.settings.pin_memory,
        )

    def _dataset(self, table: ImageTable, transform: Transform, on_corrupt: str) -> ImageDataset:
        first = transform.resize if isinstance(transform, Pipeline) else None
        found = self.cache.find(table, first) if self.cache else None
        return ImageDataset(table, transform, on_corrupt, found)


class DataModule(EvaluationData):
    """A table's training stream, and a plain pass over its validation or test rows.

    Args:
        table: the data set.
        train_transform: (3, H, W) uint8 -> (3, h, w) uint8, of the training rows.
        sampler: makes the batch sampler from the training labels (N, L).
        validated_on: the split that a validation passes over, "val" or "test".
        seed: of the training transforms' draws.
        **evaluated: of `EvaluationData`.

    Attributes:
        sampler_learns_every: batches after each of which the sampler learns from new embeddings; None: it doesn't.
    """

    stream: BatchStream

    def __init__(
        self,
        table: ImageTable,
        *,
        train_transform: Transform,
        sampler: Callable[[NDArray[Any]], BatchSampler],
        validated_on: str = "val",
        seed: int = 0,
        **evaluated: Any,
    ) -> None:
        super().__init__(table, **evaluated)
        self.validated_on = validated_on
        self.sampler_learns_every: int | None = None
        self.seed = seed
        self.train_table = table.subset("train").renumbered()
        if not len(self.train_table):
            raise InputError("dataset: its train split is empty")
        self.train_transform = train_transform
        self.sampler = sampler(self.train_table.labels)

    def train_dataloader(self) -> BatchStream:
        """The endless stream of training batches."""
        on_corrupt = "raise" if self.settings.on_corrupt == "raise" else "replace"
        last = self.trainer.max_steps * self.trainer.accumulate_grad_batches if self.trainer else None
        self.stream = BatchStream(
            self._dataset(self.train_table, self.train_transform, on_corrupt),
            self.sampler,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
            pause_every=self.sampler_learns_every,
            ends_after=last,
            num_workers=self.settings.num_workers,
            pin_memory=self.settings.pin_memory,
        )
        return self.stream

    def training_images(self) -> DataLoader[Item | None]:
        """The training rows once, in order, as a validation would see them."""
        return self._once(self.train_table, self.test_transform)

    def val_dataloader(self) -> DataLoader[Item | None]:
        """The validation rows, in order."""
        return self._once(self.table.evaluated(self.validated_on), self.test_transform)
