import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from dml.ops.errors import InputError
from dml.samplers.base import EpochSampler, Ints, check_whole, finest
from dml.samplers.class_balanced import ClassBalancedSampler, images_given

logger = logging.getLogger(__name__)

Share = tuple[int, int]  # a super-class, and how many classes it gives to a batch


class HierarchicalSampler(EpochSampler):
    """Batches of two super-classes, half of the C classes from each, K images a class (HAPPIER's batches on SOP).

    labels (N, L) int: column 0 holds the classes, column `super_level` the super-classes that they belong to.

    Epoch. Every pair of super-classes gives `batches_per_pair` batches of C·K row indices, the images of a class
    adjacent, the classes of a super-class adjacent. The pairs come in an order shuffled by
    `default_rng((seed, epoch))`. So every super-class is drawn equally often, whatever its size; SOP's 12 give
    66 x 5 batches.

    Within a super-class, classes and images are drawn as `ClassBalancedSampler` draws them: every class equally
    often, each image of a class before one repeats, also across epochs; `short_classes` is its. So an epoch's
    batches depend on labels, settings, seed and epoch only.

    A super-class of fewer than C/2 classes gives all that it has, and the other of the pair gives the rest (for
    each number of classes that it gives, a super-class keeps an endless sequence of its own). Two that have fewer
    than C classes together give no batch: the epoch is shorter, and a super-class without any partner is never
    seen. A warning counts both. With short_classes=fill or drop a super-class counts as many classes as it can
    fill with K images each.

    Raises InputError for settings that the labels cannot meet.
    """

    def __init__(
        self,
        labels: ArrayLike,
        super_level: int,
        classes_per_batch: int,
        images_per_class: int,
        batches_per_pair: int = 5,
        *,
        short_classes: str = "repeat",
        seed: int = 0,
    ) -> None:
        check_whole("super_level", super_level, least=1)
        check_whole("classes_per_batch", classes_per_batch, least=2)
        check_whole("images_per_class", images_per_class, least=1)
        check_whole("batches_per_pair", batches_per_pair, least=1)
        check_whole("seed", seed, least=0)
        if classes_per_batch % 2:
            raise InputError(
                f"sampler.classes_per_batch={classes_per_batch}: must be even, each of two super-classes gives half"
            )
        classes, supers = finest(labels), _level(labels, super_level)
        members = [np.flatnonzero(supers == name) for name in np.unique(supers)]
        room = np.array([_room(classes[rows], images_per_class, short_classes) for rows in members])
        self._pairs = _pairs(room, classes_per_batch)
        _check_pairs(room, len(self._pairs), super_level, classes_per_batch)

        self._halves = {
            (index, count): _Half(
                members[index],
                ClassBalancedSampler(
                    classes[members[index]],
                    count,
                    images_per_class,
                    short_classes=short_classes,
                    seed=_seed(seed, index, count),
                ),
                pairs * batches_per_pair,
            )
            for (index, count), pairs in Counter(half for pair in self._pairs for half in pair).items()
        }
        self.images_per_class = images_per_class
        self._batches_per_pair = batches_per_pair
        self._seed = seed
        super().__init__(len(self._pairs) * batches_per_pair)

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(self._epoch)

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self))
        halves = {key: half.of_epoch(epoch) for key, half in self._halves.items()}
        for place in order:
            first, second = self._pairs[place // self._batches_per_pair]
            yield next(halves[first]).tolist() + next(halves[second]).tolist()


@dataclass(frozen=True)
class _Half:
    """What a super-class gives to the batches in which it has a certain number of classes."""

    rows: Ints  # of the super-class
    sampler: ClassBalancedSampler  # of places in `rows`
    batches_per_epoch: int

    def of_epoch(self, epoch: int) -> Iterator[Ints]:
        first = epoch * self.batches_per_epoch
        for places in self.sampler.stretch(first, first + self.batches_per_epoch):
            yield self.rows[places]


def _level(labels: ArrayLike, level: int) -> Ints:
    """(N, L) -> column `level`"""
    array = np.asarray(labels)
    levels = 1 if array.ndim == 1 else array.shape[1]
    if level >= levels:
        raise InputError(
            f"sampler.super_level={level}: the training labels have {levels} level(s), "
            + (f"choose 1 to {levels - 1}" if levels > 1 else "this sampler needs 2 or more")
        )
    return array[:, level]


def _room(classes: Ints, images_per_class: int, short_classes: str) -> int:
    """How many classes of K images a super-class can give at once."""
    _, sizes = np.unique(classes, return_counts=True)
    return int(images_given(sizes, images_per_class, short_classes).sum()) // images_per_class


def _pairs(room: Ints, classes_per_batch: int) -> list[tuple[Share, Share]]:
    """The pairs of super-classes that fill a batch."""
    half = classes_per_batch // 2
    pairs = []
    for first, second in combinations(np.flatnonzero(room).tolist(), 2):
        if room[first] + room[second] >= classes_per_batch:
            count = min(int(room[first]), max(half, classes_per_batch - int(room[second])))
            pairs.append(((first, count), (second, classes_per_batch - count)))
    return pairs


def _check_pairs(room: Ints, pairs: int, super_level: int, classes_per_batch: int) -> None:
    """Raises InputError if no pair fills a batch; warns of what the labels are short of."""
    total, half = len(room), classes_per_batch // 2
    if total < 2:
        raise InputError(f"sampler.super_level={super_level}: the training split has 1 super-class there, 2 are needed")
    if not pairs:
        most, next_most = sorted(room.tolist(), reverse=True)[:2]
        raise InputError(
            f"sampler.classes_per_batch={classes_per_batch}: no two super-classes of level {super_level} fill a batch, "
            f"the largest have {most} and {next_most} classes to give"
        )
    if (room < half).any():
        logger.warning(
            "hierarchical sampling: %d of %d super-classes of level %d have fewer than %d classes to give; "
            "%d of %d pairs have fewer than %d together and give no batch",
            (room < half).sum(),
            total,
            super_level,
            half,
            total * (total - 1) // 2 - pairs,
            total * (total - 1) // 2,
            classes_per_batch,
        )


def _seed(seed: int, index: int, count: int) -> int:
    """A seed of its own for each half."""
    return int(np.random.SeedSequence((seed, index, count)).generate_state(1, np.uint64)[0])
