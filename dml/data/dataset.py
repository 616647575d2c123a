"""The PyTorch data set of the images in an `ImageTable`, and the function that makes batches of its items."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dml.data.images import LIMITS, REMEDY, ImageFile, ImageLimits, UnreadableImageError
from dml.data.prepared.cache import ImageCache
from dml.data.table import UNKNOWN, ImageTable
from dml.data.transforms import Pipeline, stack
from dml.runtime.errors import InputError
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

Draw = tuple[int, tuple[int, ...]]
"""A row of the table, and the numbers that seed the random steps of the image's transform."""
Item = tuple[Tensor, Tensor, int]
"""An image (3, H, W) uint8, its labels (L,), and its row."""
Batch = tuple[Tensor, Tensor, Tensor]
"""Images (B, 3, H, W) uint8, labels (B, L), and rows (B,)."""


class BatchDataset(Dataset[Any]):
    """A data set, indexed by a row of the table or by a `Draw`, whose `collate` makes batches of its items."""

    def collate(self, items: Any) -> Batch:
        """Stack items, each an `Item` or None, into a batch, see the function `collate`."""
        return collate(items)


class ImageDataset(BatchDataset):
    """A data set of transformed images with their labels and rows, indexed by a row of the table or by a `Draw`.

    The random steps of a draw's transform depend only on the draw's numbers, not on the worker that computes it nor on
    earlier draws.

    Args:
        transform: (3, H, W) uint8 -> (3, h, w) uint8; it draws from torch's global generator. A `Pipeline` may read
            the image file itself.
        on_corrupt: treatment of an unreadable image: "raise" raises the error; "replace" takes the next readable image
            of the same class, so that a training batch keeps its size; "drop" gives None, which `collate` leaves out.
            With the last two, a warning names each unreadable file once, whichever worker reads it and how often.
        cache: images of this table that ``transform.resize`` has resized; None reads the files, which gives the same
            items.
    """

    def __init__(
        self,
        table: ImageTable,
        transform: Callable[[Tensor], Tensor],
        on_corrupt: str = "raise",
        cache: ImageCache | None = None,
        limits: ImageLimits = LIMITS,
    ) -> None:
        self.paths = table.paths
        self.labels = torch.from_numpy(table.labels)
        self.class_names = table.names[0] if table.names else ()
        self.transform = transform if isinstance(transform, Pipeline) else Pipeline([transform])
        self.on_corrupt = on_corrupt
        self._is_reported: Tensor | None = None
        if on_corrupt != "raise":  # in shared memory, so that each worker knows what others have reported
            self._is_reported = torch.zeros(len(table), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.limits = limits

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int | Draw) -> Item | None:
        row, seed = index if isinstance(index, tuple) else (index, None)
        for candidate in self._candidates(int(row)):
            try:
                with _seed_generator(seed):
                    return self._load(candidate), self.labels[candidate], candidate
            except UnreadableImageError as error:
                if self._is_reported is None:
                    raise
                self._report(candidate, error, self._is_reported)
        if self.on_corrupt == "replace":
            raise make_unreadable_class_error(self.paths[row], int(self.labels[row, 0]), self.class_names)
        return None

    def _candidates(self, row: int) -> Iterator[int]:
        """Yield the row, and then the rows of the images that may replace its image."""
        yield row
        if self.on_corrupt == "replace":
            class_rows = torch.nonzero(self.labels[:, 0] == self.labels[row, 0]).flatten().tolist()
            position = class_rows.index(row)
            yield from class_rows[position + 1 :] + class_rows[:position]

    def _report(self, row: int, error: UnreadableImageError, is_reported: Tensor) -> None:
        """Log that the image of a row is skipped, unless ``is_reported`` (N,) says that its file has been logged."""
        if not is_reported[row]:
            is_reported[torch.from_numpy(self.paths == self.paths[row])] = True
            logger.warning("skipped: %s", str(error).removesuffix(REMEDY))

    def _load(self, row: int) -> Tensor:
        resized = self.cache.pixels(row) if self.cache else None
        if resized is not None:
            return self.transform.rest(resized)
        return self.transform(ImageFile(str(self.paths[row]), self.limits))


@contextmanager
def _seed_generator(seed: tuple[int, ...] | None) -> Iterator[None]:
    """Seed torch's global generator in the body of the ``with`` statement and restore it; None leaves it as it is."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
        yield


def make_unreadable_class_error(path: str, label: int, class_names: Sequence[str]) -> InputError:
    """Return the error for a class of which no image can be read; its line tells how to leave the class out."""
    named = class_names and label != UNKNOWN
    which = f", which is {printable(class_names[label])}" if named else ""
    return InputError(f"image {printable(path)}: not one image of its class can be read{which}; take the class out")


def collate(items: Sequence[Item | None]) -> Batch:
    """Join items to a batch; those that are None, for images that couldn't be read, are left out."""
    present = [item for item in items if item is not None]
    if not present:
        no_rows = torch.empty(0, dtype=torch.long)
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8), no_rows[:, None], no_rows
    images, labels, rows = zip(*present, strict=True)
    return stack(images), torch.stack(labels), torch.tensor(rows)
