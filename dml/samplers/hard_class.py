from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError, check_whole
from dml.samplers.base import Entries, EpochSampler, choose_classes_per_batch

Floats = NDArray[np.float32]


class HardClassSampler(EpochSampler):
    """Draws batches of C similar classes with K images each: hard negative class mining (Sohn, 2016).

    For each batch, random candidate classes are drawn, and the first candidate is chosen. Then the candidate nearest
    to any chosen class is added until there are C classes. This is the class that violates the triplet constraint
    most, as the violation is largest at the least distance. Ties are broken at random. Finally K different images of
    each class are drawn. Classes with fewer than K images are never drawn.

    The distance of two classes is that of their class embeddings, such as the means of their images' embeddings.
    `set_class_embeddings` sets them for the next `iter()`. Until they are set, all distances tie, and the batches are
    those of plain N-pair sampling.

    Departure: Sohn compares the embeddings of one or two random images of each class.

    Epoch: by default an epoch has ceil(N / (C·K)) batches, where N is the number of images of classes with K images or
    more. Batch t depends on labels, class embeddings, settings and `default_rng((seed, epoch, t))` only.

    >>> sampler = HardClassSampler([0, 0, 1, 1, 2, 2], classes_per_batch=2, class_embeddings=[[0.0], [9.0], [9.0]])
    >>> len(sampler), sorted(map(len, sampler))
    (2, [4, 4])

    Args:
        labels: (N,) or (N, L) integers, column 0 the finest level, which holds the classes.
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that can be drawn if they are fewer.
        images_per_class: number of images of each class in a batch, K.
        class_embeddings: (number of classes, D), one row for each class in ascending order of the labels; None if
            they are set later.
        candidate_classes: number of random classes to choose from for each batch; all if there are fewer.
        batches_per_epoch: number of batches of an epoch; None computes it from the number of images.
        seed: seed of all draws.

    Attributes:
        classes_per_batch: number of classes in a batch, C, a number also if the argument is "auto".

    Raises:
        InputError: if the labels don't have enough classes or images for the settings, or the class embeddings don't
            fit the labels.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int | str,
        images_per_class: int = 2,
        *,
        class_embeddings: ArrayLike | None = None,
        candidate_classes: int = 1000,
        batches_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("sampler.images_per_class", images_per_class, least=1)
        check_whole("sampler.batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        check_whole("sampler.seed", seed, least=0)
        self._entries = Entries.from_labels(labels)
        sizes = self._entries.sizes
        self._drawable = np.flatnonzero(sizes >= images_per_class)
        self.classes_per_batch = choose_classes_per_batch(
            classes_per_batch, sizes, len(self._drawable), images_per_class
        )
        check_whole("sampler.candidate_classes", candidate_classes, least=self.classes_per_batch)
        self.num_bank_neighbors = 0
        self._rows = np.split(np.argsort(self._entries.classes, kind="stable"), sizes.cumsum()[:-1])
        self.images_per_class = images_per_class
        self._candidates = min(candidate_classes, len(self._drawable))
        self._seed = seed
        self._embeddings: Floats = np.zeros((len(sizes), 1), np.float32)
        if class_embeddings is not None:
            self.set_class_embeddings(class_embeddings)
        images = int(sizes[self._drawable].sum())
        super().__init__(batches_per_epoch or -(-images // (self.classes_per_batch * images_per_class)))

    def set_class_embeddings(self, embeddings: ArrayLike) -> None:
        """Set the class embeddings (number of classes, D) for the next `iter()`; row c is the c-th smallest label's."""
        array = np.asarray(embeddings).astype(np.float32)
        count = len(self._embeddings)
        if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
            raise InputError(f"class embeddings of shape {array.shape}: must be ({count}, D) finite numbers")
        self._embeddings = array

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Set each class embedding to the mean embedding of its images; see `UsesEmbeddingBank`."""
        rows, classes = bank.embeddings.numpy()[self._entries.rows], self._entries.classes
        sums = np.zeros((len(self._entries.sizes), rows.shape[1]))
        np.add.at(sums, classes, rows)
        read = np.bincount(classes[rows.any(axis=1)], minlength=len(sums))  # unreadable images are 0 there
        self.set_class_embeddings(sums / np.maximum(read, 1)[:, None])

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        return self._batches(epoch, self._embeddings)

    def _batches(self, epoch: int, embeddings: Floats) -> Iterator[list[int]]:
        for number in range(len(self)):
            rng = np.random.default_rng((self._seed, epoch, number))
            candidates = rng.choice(self._drawable, self._candidates, replace=False)
            classes = candidates[_choose_nearest(embeddings[candidates], self.classes_per_batch)]
            images = [rng.choice(self._rows[c], self.images_per_class, replace=False) for c in classes]
            yield self._entries.find_rows(np.concatenate(images), (self._seed, epoch, number, 1)).tolist()


def _choose_nearest(embeddings: Floats, count: int) -> list[int]:
    """Choose row 0 of embeddings (n, D), and then repeatedly the row nearest to any chosen row; ties: the first."""
    halves = np.square(embeddings).sum(axis=1) / 2
    nearest = np.full(len(embeddings), np.inf, dtype=np.float32)  # half the squared distance to the nearest chosen row
    chosen = [0]
    while len(chosen) < count:
        last = chosen[-1]
        # A product with one row at a time: far fewer rows are chosen than there are, as a rule.
        np.minimum(nearest, halves[last] + halves - embeddings @ embeddings[last], out=nearest)
        nearest[chosen] = np.inf
        chosen.append(int(nearest.argmin()))
    return chosen
