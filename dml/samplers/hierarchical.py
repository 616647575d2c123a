import logging
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from dml.runtime.errors import InputError, check_whole
from dml.samplers.base import AUTO, AUTO_CLASSES, EpochSampler, Ints, check_settings, take_finest_labels
from dml.samplers.class_balanced import ClassBalancedSampler, images_per_draw

logger = logging.getLogger(__name__)

Share = tuple[int, int]
"""Number of a super-class, and how many classes it gives to a batch."""


class HierarchicalSampler(EpochSampler):
    """Draws batches of two super-classes, with half of the C classes from each and K images of each class.

    This is HAPPIER's sampling on SOP. A batch is a list of C·K row indices, in which the images of a class are
    adjacent, and the classes of a super-class too.

    Epoch: every pair of super-classes gives `batches_per_pair` batches; SOP's 12 super-classes give 66 x 5 batches.
    Their order is shuffled by `default_rng((seed, epoch))`. Every super-class is therefore drawn equally often,
    whatever its size. The batches depend on labels, settings, seed and epoch only.

    Within a super-class, a `ClassBalancedSampler` draws the classes and images: every class equally often, and all
    images of a class before one repeats, also across epochs.

    A super-class of fewer than C/2 classes gives all its classes, and the other super-class of the pair gives the rest.
    (For each number of classes that it gives, a super-class has a separate `ClassBalancedSampler`.) A pair with fewer
    than C classes together gives no batch, so the epoch is shorter, and a super-class without any partner is never
    drawn. A warning counts both. With `short_classes` "fill" or "drop", a super-class counts as having as many classes
    as it can fill with K images each.

    >>> labels = [[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]]
    >>> sampler = HierarchicalSampler(labels, super_level=1, classes_per_batch=2, images_per_class=2)
    >>> len(sampler), [len(batch) for batch in sampler]
    (5, [4, 4, 4, 4, 4])

    Args:
        super_level: column of the labels that holds the super-classes.
        classes_per_batch: number of classes in a batch, C, an even number; "auto" takes 20, or as many as the two
            largest super-classes can give if they are fewer.
        batches_per_pair: number of batches of each pair of super-classes in an epoch.
        short_classes: treatment of classes with fewer than K images; see `ClassBalancedSampler`.
    """

    def __init__(
        self,
        labels: ArrayLike,
        super_level: int,
        classes_per_batch: int | str,
        images_per_class: int,
        batches_per_pair: int = 5,
        *,
        short_classes: str = "repeat",
        seed: int = 0,
    ) -> None:
        check_settings(super_level=super_level, images_per_class=images_per_class, seed=seed)
        check_settings(batches_per_pair=batches_per_pair)
        check_whole("sampler.classes_per_batch", 2 if classes_per_batch == AUTO else classes_per_batch, least=2)
        if classes_per_batch != AUTO and int(classes_per_batch) % 2:
            raise InputError(
                f"sampler.classes_per_batch={classes_per_batch}: must be even, each of two super-classes gives half"
            )
        classes, supers = take_finest_labels(labels), _level(labels, super_level)
        members = [np.flatnonzero(supers == name) for name in np.unique(supers)]
        capacities = np.array([_capacity(classes[rows], images_per_class, short_classes) for rows in members])
        auto = max(2, min(AUTO_CLASSES, _largest_batch(capacities)))
        self.classes_per_batch = auto if classes_per_batch == AUTO else int(classes_per_batch)
        self._pairs = _pair_up(capacities, self.classes_per_batch)
        _check_pairs(capacities, len(self._pairs), super_level, self.classes_per_batch)

        self._halves = {
            (index, count): ClassBalancedSampler(
                classes[members[index]],
                count,
                images_per_class,
                short_classes=short_classes,
                batches_per_epoch=pairs * batches_per_pair,
                rows=members[index],
                seed=_derive_seed(seed, index, count),
            )
            for (index, count), pairs in Counter(half for pair in self._pairs for half in pair).items()
        }
        self.images_per_class = images_per_class
        self._batches_per_pair = batches_per_pair
        self._seed = seed
        super().__init__(len(self._pairs) * batches_per_pair)

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self))
        halves = {
            key: half.slice_batches(epoch * len(half), (epoch + 1) * len(half)) for key, half in self._halves.items()
        }
        for number in order:
            first, second = self._pairs[number // self._batches_per_pair]
            yield next(halves[first]).tolist() + next(halves[second]).tolist()


def _level(labels: ArrayLike, level: int) -> Ints:
    array = np.asarray(labels)
    levels = 1 if array.ndim == 1 else array.shape[1]
    if level >= levels:
        raise InputError(
            f"sampler.super_level={level}: the training labels have {levels} level(s), "
            + (f"choose 1 to {levels - 1}" if levels > 1 else "this sampler needs 2 or more")
        )
    return array[:, level]


def _capacity(classes: Ints, images_per_class: int, short_classes: str) -> int:
    """Compute how many classes with K images each a super-class can give to one batch."""
    _, sizes = np.unique(classes, return_counts=True)
    return int(images_per_draw(sizes, images_per_class, short_classes).sum()) // images_per_class


def _largest_batch(capacities: Ints) -> int:
    """Compute the largest even number of classes that two super-classes fill; 0 if there aren't two with any class."""
    largest = np.sort(capacities)[-2:]
    return int(largest.sum()) // 2 * 2 if len(largest) == 2 and largest.min() > 0 else 0


def _pair_up(capacities: Ints, classes_per_batch: int) -> list[tuple[Share, Share]]:
    """List the pairs of super-classes that fill a batch, with the number of classes that each gives."""
    half = classes_per_batch // 2
    pairs = []
    for first, second in combinations(np.flatnonzero(capacities).tolist(), 2):
        if capacities[first] + capacities[second] >= classes_per_batch:
            count = min(int(capacities[first]), max(half, classes_per_batch - int(capacities[second])))
            pairs.append(((first, count), (second, classes_per_batch - count)))
    return pairs


def _check_pairs(capacities: Ints, pairs: int, super_level: int, classes_per_batch: int) -> None:
    """Raise InputError if no pair fills a batch, and warn if some super-classes have too few classes."""
    total, half = len(capacities), classes_per_batch // 2
    if not pairs:
        largest = " and ".join(map(str, sorted(capacities.tolist(), reverse=True)[:2]))
        possible = _largest_batch(capacities)
        raise InputError(
            f"sampler.classes_per_batch={classes_per_batch}: no two super-classes of level {super_level} fill a batch, "
            f"the largest of {total} have {largest} classes to give"
            + (f"; sampler.classes_per_batch={possible} would do" if possible else "")
        )
    if (capacities < half).any():
        logger.warning(
            "hierarchical sampling: %d of %d super-classes of level %d have fewer than %d classes to give; "
            "%d of %d pairs have fewer than %d together and give no batch",
            (capacities < half).sum(),
            total,
            super_level,
            half,
            total * (total - 1) // 2 - pairs,
            total * (total - 1) // 2,
            classes_per_batch,
        )


def _derive_seed(seed: int, index: int, count: int) -> int:
    """Compute a different seed for each super-class and number of classes that it gives."""
    return int(np.random.SeedSequence((seed, index, count)).generate_state(1, np.uint64)[0])
