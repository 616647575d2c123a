from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.runtime.errors import InputError, check_number, check_whole
from dml.samplers.base import AUTO, AUTO_CLASSES, EpochSampler, Ints, take_finest_labels
from dml.samplers.class_balanced import ClassBalancedSampler

Floats = NDArray[np.float64]


class ManySetsSampler(EpochSampler):
    """Draws batches of several data sets: each batch of one of them, or with classes of all.

    In each data set a `ClassBalancedSampler` draws the classes and images: all images of a class are used before one
    repeats, whatever the shares. These divide the B batches of an epoch, in an order that `default_rng((seed, epoch))`
    shuffles, or the C classes of each mixed batch; largest remainders round up.

    With `shares` "loss" each epoch divides by the mean loss of each data set in the epoch before, at first equally; a
    data set without a batch keeps its share, and then all are rescaled. This is UDON's rule (arXiv 2406.08332), whose
    shares change every 1,000 steps.

    >>> sampler = ManySetsSampler([0, 0, 1, 1, 2, 2, 3, 3], 2, 2, domain=np.array([*"aaaabbbb"]), batches_per_epoch=4)
    >>> sorted(sorted(batch) for batch in sampler)
    [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]

    Args:
        labels: (N,) or (N, L) integers, column 0 the finest level, which holds the classes.
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that there are if they are fewer.
        images_per_class: number of images of each class in a batch, K.
        mixed: whether each batch has classes of all data sets.
        shares: "equal", "size" (by the number of images), "loss", or a number for each data set by its name.
        short_classes: treatment of classes with fewer than K images; see `ClassBalancedSampler`.
        batches_per_epoch: number of batches of an epoch, B; None takes as many as have N images.
        domain: (N,) names of the images' data sets; None for one data set.
        seed: seed of all shuffles.

    Attributes:
        state: (4, D) what `shares` "loss" changes, for each data set: the share; how many batches more it has had
            before an epoch than it would have had at this share; the sum and the number of its losses in the epoch.

    Raises:
        InputError: if a data set doesn't have enough classes or images for the settings, or the shares can't be used.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int | str = AUTO,
        images_per_class: int = 3,
        *,
        mixed: bool = False,
        shares: str | Mapping[str, float] = "equal",
        short_classes: str = "repeat",
        batches_per_epoch: int | None = None,
        domain: NDArray[np.str_] | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("sampler.batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        self.mixed, self.follows_loss, self._seed = mixed, shares == "loss", seed
        if mixed and self.follows_loss:
            raise InputError("sampler.shares=loss: takes batches of one data set each, sampler.mixed=false")
        classes = take_finest_labels(labels)
        domain = np.full(len(classes), "") if domain is None else domain
        names, self._set_of_row = np.unique(domain, return_inverse=True)
        parts = {str(name): np.flatnonzero(domain == name) for name in names}
        self.state = np.zeros((4, len(names)))
        self.state[0] = _read_shares(shares, {name: len(rows) for name, rows in parts.items()})
        counts: list[Any] = [classes_per_batch] * len(names)
        if mixed:
            total = min(AUTO_CLASSES, len(np.unique(classes))) if classes_per_batch == AUTO else int(classes_per_batch)
            counts = divide(total, self.state[0]).tolist()
        self._samplers = []
        for (name, rows), count in zip(parts.items(), counts, strict=True):
            options: Any = {"short_classes": short_classes, "rows": rows, "seed": seed}
            try:
                self._samplers.append(ClassBalancedSampler(classes[rows], count, images_per_class, **options))
            except InputError as error:
                raise InputError(f"{error} (data set {name})" if name else str(error)) from error
        sizes = np.array([sampler.classes_per_batch for sampler in self._samplers])
        self.classes_per_batch, self.images_per_class = int(sizes.sum() if mixed else sizes.min()), images_per_class
        batch_size = images_per_class * (sizes.sum() if mixed else self.state[0] @ sizes)
        super().__init__(batches_per_epoch or int(np.ceil(len(classes) / batch_size)))

    @property
    def _counts(self) -> Ints:
        """The number of batches (D,) of an epoch that each data set has a part of."""
        return np.full(len(self._samplers), len(self)) if self.mixed else divide(len(self), self.state[0])

    def add_loss(self, row: int, loss: float, batches: int) -> None:
        """Take the loss of the batch of a row; at the end of an epoch, change the shares if they follow the losses.

        ``batches`` is the number of batches of the training so far, this one included.
        """
        shares, offsets, sums, numbers = self.state
        sums[self._set_of_row[row]] += max(loss, 0.0)
        numbers[self._set_of_row[row]] += 1
        epoch, batch = divmod(batches, len(self))
        if batch:
            return
        before, is_seen, losses = self._counts, numbers > 0, sums / np.maximum(numbers, 1)
        if losses.sum() > 0:
            shares[is_seen] = losses[is_seen] / losses.sum()
            shares /= shares.sum()
        offsets += epoch * (before - self._counts)
        self.state[2:] = 0

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        counts = self._counts
        starts = self.state[1].astype(np.int64) + epoch * counts
        ranges = zip(self._samplers, starts.tolist(), counts.tolist(), strict=True)
        parts = [sampler.slice_batches(start, start + count) for sampler, start, count in ranges]
        if self.mixed:
            yield from (np.concatenate(batch).tolist() for batch in zip(*parts, strict=True))
        else:
            rng = np.random.default_rng((self._seed, epoch))
            yield from (next(parts[i]).tolist() for i in rng.permutation(np.repeat(np.arange(len(parts)), counts)))


def divide(total: int, shares: Floats) -> Ints:
    """Divide a number in proportion to shares (D,) into whole numbers (D,), by largest remainders.

    >>> divide(10, np.array([0.5, 0.25, 0.25])).tolist()
    [5, 3, 2]
    """
    exact = total * shares / shares.sum()
    counts: Ints = np.floor(exact + 1e-9).astype(np.int64)  # what rounding left below a whole number
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _read_shares(shares: Any, sizes: Mapping[str, int]) -> Floats:
    """Return the shares (D,), of which the sum is 1, of data sets with so many images."""
    named = {"equal": dict.fromkeys(sizes, 1), "loss": dict.fromkeys(sizes, 1), "size": sizes}
    by_name = shares if isinstance(shares, Mapping) else named.get(shares, {})
    if {*by_name} != {*sizes} or not any(by_name.values()):
        shown = dict(shares) if isinstance(shares, Mapping) else shares
        raise InputError(f"sampler.shares={shown}: {', '.join(named)}, or a number for each of {', '.join(sizes)}")
    for name, share in by_name.items():
        check_number(f"sampler.shares.{name}", share, least=0)
    array: Floats = np.array([by_name[name] for name in sizes], dtype=np.float64)
    return array / float(array.sum())
