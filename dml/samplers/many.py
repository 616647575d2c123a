from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.runtime.errors import InputError, check_number, check_whole
from dml.samplers.base import AUTO, AUTO_CLASSES, EpochSampler, Ints, take_finest_labels
from dml.samplers.class_balanced import ClassBalancedSampler

Floats = NDArray[np.float64]

EQUAL, SIZE, LOSS = "equal", "size", "loss"


class ManySetsSampler(EpochSampler):
    """Draws batches of several data sets: each batch of one of them, or with classes of all.

    In each data set a `ClassBalancedSampler` draws the classes and images, so that all images of a class are used
    before one repeats, however the shares of the data sets change. The shares of the B batches of an epoch, or of the C
    classes of each batch if they are mixed, are rounded to whole numbers that have the right sum (largest remainders).
    Batches of one data set come in an order that `default_rng((seed, epoch))` shuffles.

    With `shares` "loss" an epoch draws each data set in proportion to its mean loss in the epoch before (UDON,
    arXiv 2406.08332): see `next_shares`. The first epoch draws all equally often. UDON takes turns in it, and changes
    the shares every 1,000 batches, which is `batches_per_epoch` here.

    >>> sampler = ManySetsSampler(np.arange(8) // 2, 2, 2, domain=np.array(["a"] * 4 + ["b"] * 4), batches_per_epoch=4)
    >>> sorted(sorted(batch) for batch in sampler)
    [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]

    Args:
        labels: (N,) or (N, L) integers, column 0 the finest level, which holds the classes.
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that there are if they are fewer.
        images_per_class: number of images of each class in a batch, K.
        mixed: whether each batch has classes of all data sets.
        shares: "equal", "size" (in proportion to the numbers of images), "loss", or the share of each data set by its
            name, of which the sum needn't be 1.
        short_classes: treatment of classes with fewer than K images; see `ClassBalancedSampler`.
        batches_per_epoch: number of batches of an epoch, B; None takes as many as have N images.
        domain: (N,) names of the images' data sets; None for one data set.
        seed: seed of all shuffles.

    Attributes:
        domains: names of the D data sets.
        weights: (D,) their shares, of which the sum is 1.
        offsets: (D,) number by which a data set's batches before an epoch differ from those that it would have had with
            the present shares.

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
        shares: str | Mapping[str, float] = EQUAL,
        short_classes: str = "repeat",
        batches_per_epoch: int | None = None,
        domain: NDArray[np.str_] | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("sampler.batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        classes = take_finest_labels(labels)
        domain = np.full(len(classes), "") if domain is None else domain
        self.domains = [*dict.fromkeys(domain.tolist())]
        self.adapts, self.mixed = shares == LOSS, mixed
        if self.adapts and mixed:
            raise InputError("sampler.shares=loss: a loss is that of one data set if sampler.mixed=false")
        self._rows = [np.flatnonzero(domain == name) for name in self.domains]
        self.weights = _find_weights(shares, self.domains, np.array([*map(len, self._rows)], dtype=np.float64))
        self.offsets: Ints = np.zeros(len(self.domains), dtype=np.int64)
        counts = [classes_per_batch] * len(self.domains)
        if mixed:
            counts = self._divide_classes(classes_per_batch, len(np.unique(classes)))
        self._samplers = []
        for name, rows, count in zip(self.domains, self._rows, counts, strict=True):
            try:
                sampler = ClassBalancedSampler(
                    classes[rows], count, images_per_class, short_classes=short_classes, seed=seed
                )
            except InputError as error:
                raise InputError(f"{error} (data set {name})" if name else str(error)) from error
            self._samplers.append(sampler)
        sizes = np.array([sampler.classes_per_batch for sampler in self._samplers])
        self.classes_per_batch, self.images_per_class = int(sizes.sum() if mixed else sizes.min()), images_per_class
        batch_size = images_per_class * (sizes.sum() if mixed else self.weights @ sizes)
        self._seed = seed
        super().__init__(batches_per_epoch or int(np.ceil(len(classes) / batch_size)))

    def _divide_classes(self, classes_per_batch: int | str, num_classes: int) -> list[int]:
        total = min(AUTO_CLASSES, num_classes) if classes_per_batch == AUTO else int(classes_per_batch)
        counts: list[int] = divide(total, self.weights).tolist()
        if 0 in counts:
            name = self.domains[counts.index(0)]
            raise InputError(
                f"sampler.classes_per_batch={classes_per_batch}: the share of data set {name} is less than one of "
                f"{total} classes; more classes, another share or sampler.mixed=false would do"
            )
        return counts

    @property
    def _counts(self) -> Ints:
        """The number of batches (D,) in an epoch to which each data set contributes."""
        return np.full(len(self.domains), len(self)) if self.mixed else divide(len(self), self.weights)

    def update_shares(self, losses: Floats, epoch: int) -> None:
        """Change the shares from an epoch on.

        Args:
            losses: (D,) mean loss of each data set in the epoch before, NaN if it had no batch.
            epoch: number of the first epoch that has the new shares.
        """
        counts = self._counts
        self.weights = next_shares(self.weights, losses)
        self.offsets = self.offsets + epoch * (counts - self._counts)

    def __iter__(self) -> Iterator[list[int]]:
        counts = self._counts
        starts = self.offsets + self._epoch * counts
        parts = [
            self._iterate_part(number, int(start), int(count))
            for number, (start, count) in enumerate(zip(starts, counts, strict=True))
        ]
        if self.mixed:
            for batches in zip(*parts, strict=True):
                yield [row for batch in batches for row in batch]
            return
        order = np.repeat(np.arange(len(parts)), counts)
        for number in np.random.default_rng((self._seed, self._epoch)).permutation(order):
            yield next(parts[number])

    def _iterate_part(self, number: int, start: int, count: int) -> Iterator[list[int]]:
        for batch in self._samplers[number].slice_batches(start, start + count):
            yield self._rows[number][batch].tolist()


def divide(total: int, weights: Floats) -> Ints:
    """Divide a number into whole numbers (D,) in proportion to weights (D,), by their largest remainders.

    >>> divide(10, np.array([0.5, 0.25, 0.25])).tolist()
    [5, 3, 2]
    """
    exact = total * weights / weights.sum()
    counts: Ints = np.floor(exact + 1e-9).astype(np.int64)  # what rounding left below a whole number
    largest = np.argsort(counts - exact, kind="stable")[: total - counts.sum()]
    counts[largest] += 1
    return counts


def next_shares(shares: Floats, losses: Floats) -> Floats:
    """Return the shares (D,) in proportion to mean losses (D,); a data set with loss NaN keeps its share, then rescaled.

    Losses below 0 count as 0. If no loss is above it, the shares stay as they are.

    >>> next_shares(np.array([0.5, 0.25, 0.25]), np.array([3.0, 1.0, np.nan])).tolist()
    [0.6, 0.2, 0.2]
    """
    positive = np.maximum(losses, 0.0)
    total = np.nansum(positive)
    if not total > 0:
        return shares
    changed: Floats = np.where(np.isnan(losses), shares, positive / total)
    return changed / changed.sum()


def _find_weights(shares: Any, domains: list[str], sizes: Floats) -> Floats:
    if isinstance(shares, str) and shares in (EQUAL, SIZE, LOSS):
        weights = sizes if shares == SIZE else np.ones(len(domains))
    elif isinstance(shares, Mapping) and {*shares} == {*domains}:
        for name, share in shares.items():
            check_number(f"sampler.shares.{name}", share, least=0)
        weights = np.array([shares[name] for name in domains], dtype=np.float64)
        if not weights.sum() > 0:
            raise InputError(f"sampler.shares={dict(shares)}: one must be above 0")
    else:
        raise InputError(
            f"sampler.shares={dict(shares) if isinstance(shares, Mapping) else shares}: must be {EQUAL}, {SIZE}, {LOSS} "
            f"or a number for each of {', '.join(map(repr, domains))}"
        )
    return weights / weights.sum()
