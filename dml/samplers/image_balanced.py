from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from dml.ops.errors import InputError
from dml.samplers.base import EpochSampler, Ints, check_whole, finest


class ImageBalancedSampler(EpochSampler):
    """Batches of C classes x K images in which every image comes about once an epoch (HAPPIER's release).

    labels (N,) int, or (N, L), of which column 0, the finest level, counts.

    Epoch. Each class of n images is shuffled and cut into floor(n / K) groups of K images; the n mod K images that
    remain are not seen in this epoch. So a class is drawn in proportion to its size, and classes of fewer than K
    images are never drawn. A batch is C groups of different classes. An epoch has as many batches as can be made:
    the largest number B for which the classes have C·B groups, no more than B of them counted for any class, since
    a class is in a batch at most once. Of the groups beyond C·B, which are fewer than C if no class has more than
    B, other ones are left out in each epoch.

    Which classes meet. As in the release, the groups of a class are in consecutive batches: the classes are
    shuffled, their groups are laid in one row, and the group at place p goes to batch p mod B (McNaughton's
    wrap-around rule for B machines). Then the batches are shuffled. The release fills batch after batch from the
    first classes that have groups left, and stops when fewer than C classes have any: how many batches its epochs
    have depends on the shuffle, and the largest classes' last groups are often lost. That is the one difference.

    Epoch e depends on labels, C, K, seed and e only: its randomness is `default_rng((seed, e))`.

    Args:
        labels: of the training images.
        classes_per_batch: C.
        images_per_class: K, 2 or more.
        seed: of the shuffles.

    Raises:
        InputError: for settings that the labels cannot meet.
    """

    def __init__(self, labels: ArrayLike, classes_per_batch: int, images_per_class: int, *, seed: int = 0) -> None:
        check_whole("classes_per_batch", classes_per_batch, least=1)
        check_whole("images_per_class", images_per_class, least=2)
        check_whole("seed", seed, least=0)
        _, self._class_of_row, sizes = np.unique(finest(labels), return_inverse=True, return_counts=True)
        groups = sizes // images_per_class
        batches = most_batches(groups, classes_per_batch)
        if not batches:
            raise InputError(
                f"sampler.classes_per_batch={classes_per_batch}: only {np.count_nonzero(groups)} of the "
                f"{len(sizes)} training classes have images_per_class={images_per_class} images"
            )
        self.images_per_class = images_per_class
        self._classes_per_batch = classes_per_batch
        self._first_place = sizes.cumsum() - sizes
        self._groups = np.minimum(groups, batches)
        self._seed = seed
        super().__init__(batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches(self._epoch):
            yield batch.tolist()

    def _batches(self, epoch: int) -> Ints:
        """The batches of an epoch: (B, C·K) row indices, the images of a class adjacent"""
        rng = np.random.default_rng((self._seed, epoch))
        shuffled = rng.permutation(len(self._class_of_row))
        rows_by_class = shuffled[np.argsort(self._class_of_row[shuffled], kind="stable")]
        first_places = self._shuffled_groups(rng)[: self._classes_per_batch * len(self)]
        groups = rows_by_class[first_places[:, None] + np.arange(self.images_per_class)]
        batches = groups.reshape(self._classes_per_batch, len(self), -1).swapaxes(0, 1)
        shuffled_batches: Ints = batches[rng.permutation(len(self))].reshape(len(self), -1)
        return shuffled_batches

    def _shuffled_groups(self, rng: np.random.Generator) -> Ints:
        """Where each group begins among the rows in the order of their classes; the classes in a new order"""
        classes = rng.permutation(len(self._groups))
        numbers = self._groups[classes]
        group_in_class = np.arange(numbers.sum()) - np.repeat(numbers.cumsum() - numbers, numbers)
        first_places: Ints = np.repeat(self._first_place[classes], numbers) + group_in_class * self.images_per_class
        return first_places


def most_batches(groups: Ints, classes_per_batch: int) -> int:
    """How many batches of C different classes can be made of so many groups of each class; (classes,) -> number"""
    batches = int(groups.sum()) // classes_per_batch
    # more batches than the largest number are never enough for themselves, and what they are enough for is no less
    while (enough := int(np.minimum(groups, batches).sum()) // classes_per_batch) < batches:
        batches = enough
    return batches
