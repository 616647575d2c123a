"""The data of a training of the heads alone: head inputs in place of images."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dml.data.dataset import Batch, BatchDataset, Draw, make_unreadable_class_error
from dml.data.table import ImageTable
from dml.training.data import DataModule, Transform
from dml.training.frozen.head_inputs import HeadInputs


class FeatureDataset(BatchDataset):
    """A data set of head inputs with the labels and the rows of their images, indexed by lists of rows or `Draw`s.

    Args:
        table: the table of the images.
        values: (N, F) head inputs of the images; NaN for images that can't be read.
        on_corrupt: treatment of an image that can't be read, as in `ImageDataset`; it is "replace" or "drop" if there
            is one.

    Raises:
        InputError: if "replace" finds no readable image of a class.
    """

    def __init__(self, table: ImageTable, values: Tensor, on_corrupt: str) -> None:
        self.values = values
        self.labels = torch.from_numpy(table.labels)
        self.is_readable = ~values[:, 0].isnan()
        self.rows = torch.arange(len(values))
        if on_corrupt == "replace":
            for row in torch.nonzero(~self.is_readable).flatten().tolist():
                self.rows[row] = self._find_replacement(table, row)

    def _find_replacement(self, table: ImageTable, row: int) -> int:
        """Return the row of the next readable image of the class."""
        is_candidate = self.is_readable & (self.labels[:, 0] == self.labels[row, 0])
        candidates: list[int] = torch.nonzero(is_candidate).flatten().tolist()
        if not candidates:
            class_names = table.names[0] if table.names else ()
            raise make_unreadable_class_error(table.paths[row], int(self.labels[row, 0]), class_names)
        return next((candidate for candidate in candidates if candidate > row), candidates[0])

    def __len__(self) -> int:
        return len(self.values)

    def __getitems__(self, indices: Sequence[int | Draw]) -> Batch:
        """Return the head inputs (B, F) of images, their labels (B, L) and their rows (B,)."""
        rows = self.rows[[index[0] if isinstance(index, tuple) else index for index in indices]]
        rows = rows[self.is_readable[rows]]
        return self.values[rows], self.labels[rows], rows

    def collate(self, items: Any) -> Batch:
        """Return the batch, which `__getitems__` has made."""
        batch: Batch = items
        return batch


class FrozenDataModule(DataModule):
    """Loads head inputs, (B, F) in a batch, in the place of images, for training, validation and test.

    All images are transformed as in a test. A test of several views of each image still loads the images.

    Attributes:
        load_inputs: function that returns the head inputs of all images of a table; it is set before the training.
    """

    load_inputs: Callable[[ImageTable], HeadInputs]

    def _make_dataset(self, table: ImageTable, transform: Transform, on_corrupt: str) -> BatchDataset:
        if transform is self.train_transform or transform is self.test_transform:
            return FeatureDataset(table, self.load_inputs(table).values, on_corrupt)
        return super()._make_dataset(table, transform, on_corrupt)

    def _count_workers(self, dataset: BatchDataset) -> int:
        return 0 if isinstance(dataset, FeatureDataset) else super()._count_workers(dataset)
