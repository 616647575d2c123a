import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dml.data.cache import ImageCache
from dml.data.images import ImageFile, UnreadableImageError
from dml.data.table import ImageTable
from dml.data.transforms import Pipeline, stack
from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

Draw = tuple[int, tuple[int, ...]]
"""A row of the table, and the numbers that seed the random part of its transform."""
Item = tuple[Tensor, Tensor, int]
"""An image (3, H, W) uint8, its labels (L,) and its row."""
Batch = tuple[Tensor, Tensor, Tensor]
"""Images (B, 3, H, W) uint8, labels (B, L) and rows (B,)."""


class ImageDataset(Dataset[Item | None]):
    """The images of a table.

    Indexed by a row, or by a `Draw`: a draw's transform is a function of its numbers alone, whichever worker
    makes it and whatever was drawn before.

    Args:
        table: the rows.
        transform: (3, H, W) uint8 -> (3, h, w) uint8; its randomness comes from torch's global generator. A
            `Pipeline` may read the file itself.
        on_corrupt: what an unreadable image does: "raise"; "replace" by the next readable one of its class, so
            that a training batch keeps its size; "drop" gives None, which `collate` leaves out.
        cache: the images as ``transform.resize`` leaves them, of this table's rows; None reads the files. The items
            are the same.
    """

    def __init__(
        self,
        table: ImageTable,
        transform: Callable[[Tensor], Tensor],
        on_corrupt: str = "raise",
        cache: ImageCache | None = None,
    ) -> None:
        if on_corrupt not in ("raise", "replace", "drop"):
            raise InputError(f"on_corrupt={on_corrupt}: raise, replace or drop")
        self.paths = table.paths
        self.labels = torch.from_numpy(table.labels)
        self.transform = transform if isinstance(transform, Pipeline) else Pipeline([transform])
        self.on_corrupt = on_corrupt
        self.cache = cache

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int | Draw) -> Item | None:
        row, seed = index if isinstance(index, tuple) else (index, None)
        for candidate in self._candidates(int(row)):
            try:
                with _seeded(seed):
                    return self._transformed(candidate), self.labels[candidate], candidate
            except UnreadableImageError as error:
                if self.on_corrupt == "raise":
                    raise
                logger.warning("skipped: %s", error)
        if self.on_corrupt == "replace":
            raise InputError(f"image {self.paths[row]}: not one image of its class can be read")
        return None

    def _candidates(self, row: int) -> Iterator[int]:
        """The row, then those that may stand in for it."""
        yield row
        if self.on_corrupt == "replace":
            same = torch.nonzero(self.labels[:, 0] == self.labels[row, 0]).flatten().tolist()
            place = same.index(row)
            yield from same[place + 1 :] + same[:place]

    def _transformed(self, row: int) -> Tensor:
        resized = self.cache.pixels(row) if self.cache else None
        if resized is not None:
            return self.transform.rest(resized)
        return self.transform(ImageFile(str(self.paths[row])))


@contextmanager
def _seeded(seed: tuple[int, ...] | None) -> Iterator[None]:
    """Within it torch's global generator draws what ``seed`` alone determines."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
        yield


def collate(items: Sequence[Item | None]) -> Batch:
    """Stacks items into a batch, leaving out those that could not be read."""
    present = [item for item in items if item is not None]
    if not present:
        none = torch.empty(0, dtype=torch.long)
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8), none[:, None], none
    images, labels, rows = zip(*present, strict=True)
    return stack(images), torch.stack(labels), torch.tensor(rows)
