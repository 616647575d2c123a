from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from dml.runtime.errors import check_whole
from dml.samplers.base import EpochSampler, Ints, check_settings, choose_classes_per_batch, number_classes


class ImageBalancedSampler(EpochSampler):
    """Draws batches of C classes with K images each, such that nearly every image is drawn once in an epoch.

    This is the sampling of HAPPIER's release, with one departure.

    Epoch: the images of each class are shuffled and cut into groups of K; images that are left aren't used in this
    epoch. A class is therefore drawn in proportion to its size, and classes with fewer than K images are never drawn.
    A batch is C groups of different classes. An epoch has the largest possible number B of batches: the classes must
    have C·B groups, where at most B groups of a class count, because a batch contains a class at most once. The groups
    beyond C·B are skipped, different ones in each epoch.

    Order: as in the release, the groups of a class are in consecutive batches. The classes are shuffled, their groups
    are put in a row, and group number p goes to batch p mod B (McNaughton's wrap-around rule for B machines). Then the
    batches are shuffled.

    Departure: the release fills one batch after the other from the first classes with groups left, and stops when
    fewer than C classes have any. The number of its batches depends on the shuffle, and the last groups of the largest
    classes are often lost.

    Randomness: epoch e depends on labels, C, K, seed and e only, through `default_rng((seed, e))`.

    >>> sampler = ImageBalancedSampler([0, 0, 0, 0, 1, 1, 2, 2], classes_per_batch=2, images_per_class=2)
    >>> sorted(row for batch in sampler for row in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]

    Args:
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that can be drawn if they are fewer.
        images_per_class: number of images of each class in a batch, K, at least 2.
    """

    def __init__(
        self, labels: ArrayLike, classes_per_batch: int | str, images_per_class: int, *, seed: int = 0
    ) -> None:
        check_whole("sampler.images_per_class", images_per_class, least=2)
        check_settings(seed=seed)
        self._classes, sizes = number_classes(labels)
        num_groups = sizes // images_per_class
        self.classes_per_batch = choose_classes_per_batch(
            classes_per_batch, sizes, int(np.count_nonzero(num_groups)), images_per_class
        )
        batches = max_batches(num_groups, self.classes_per_batch)
        self.images_per_class = images_per_class
        self._class_starts = sizes.cumsum() - sizes
        self._num_groups = np.minimum(num_groups, batches)
        self._seed = seed
        super().__init__(batches)

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        for batch in self._batches(epoch):
            yield batch.tolist()

    def _batches(self, epoch: int) -> Ints:
        """Draw the batches of an epoch -> row indices (B, C·K), the images of a class adjacent."""
        rng = np.random.default_rng((self._seed, epoch))
        shuffled = rng.permutation(len(self._classes))
        rows_by_class = shuffled[np.argsort(self._classes[shuffled], kind="stable")]
        starts = self._shuffle_groups(rng)[: self.classes_per_batch * len(self)]
        groups = rows_by_class[starts[:, None] + np.arange(self.images_per_class)]
        batches = groups.reshape(self.classes_per_batch, len(self), -1).swapaxes(0, 1)
        shuffled_batches: Ints = batches[rng.permutation(len(self))].reshape(len(self), -1)
        return shuffled_batches

    def _shuffle_groups(self, rng: np.random.Generator) -> Ints:
        """Shuffle the classes and return where each of their groups begins in the rows sorted by class."""
        classes = rng.permutation(len(self._num_groups))
        num_groups = self._num_groups[classes]
        group_in_class = np.arange(num_groups.sum()) - np.repeat(num_groups.cumsum() - num_groups, num_groups)
        starts: Ints = np.repeat(self._class_starts[classes], num_groups) + group_in_class * self.images_per_class
        return starts


def max_batches(num_groups: Ints, classes_per_batch: int) -> int:
    """Compute the largest number of batches with groups of C different classes each, from the groups of each class.

    >>> max_batches(np.array([5, 1, 1]), classes_per_batch=2)
    2
    """
    batches = int(num_groups.sum()) // classes_per_batch
    # If B batches can't be filled, the groups that count for B fill fewer than B, but no fewer than the solution.
    while (filled := int(np.minimum(num_groups, batches).sum()) // classes_per_batch) < batches:
        batches = filled
    return batches
