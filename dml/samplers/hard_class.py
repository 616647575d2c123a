from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.errors import InputError
from dml.samplers.base import EpochSampler, check_whole, finest

Floats = NDArray[np.float32]


class HardClassSampler(EpochSampler):
    """Batches of C classes that lie close together x K images: hard negative classes for N-pair losses (Sohn, 2016).

    labels (N,) int, or (N, L), of which column 0 counts. Classes of fewer than K images are never drawn.
    class_embeddings (number of classes, D): one vector for each class, such as the mean of its images' embeddings,
    in ascending order of the labels. `set_class_embeddings` gives them later, or anew; they count from the next
    `iter()` on. Without them all classes tie: the batches are plain N-pair ones.

    For each batch `candidate_classes` classes are drawn at random, all if there are fewer, and the first of them
    is taken. Then, until there are C, the one that violates the triplet constraint most with respect to those
    taken: of all triplets of a taken class, itself, and a candidate the worst is the one with the least distance,
    so it is the candidate nearest to any of the taken. Ties are broken at random. At last K images of each class
    are drawn, none twice.

    Departure from Sohn: one vector a class stands for the one or two random images of it that he embeds.

    Epoch. `batches_per_epoch` batches, by default ceil(N / (C·K)), N counting the images of the classes that are
    drawn at all. Batch t depends on labels, class embeddings, settings and `default_rng((seed, epoch, t))` only.

    Raises InputError for settings that the labels cannot meet, or embeddings that do not fit them.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int,
        images_per_class: int = 2,
        *,
        class_embeddings: ArrayLike | None = None,
        candidate_classes: int = 1000,
        batches_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("classes_per_batch", classes_per_batch, least=1)
        check_whole("images_per_class", images_per_class, least=1)
        check_whole("candidate_classes", candidate_classes, least=classes_per_batch)
        check_whole("batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        check_whole("seed", seed, least=0)
        _, class_of_row, sizes = np.unique(finest(labels), return_inverse=True, return_counts=True)
        self._drawn = np.flatnonzero(sizes >= images_per_class)
        if len(self._drawn) < classes_per_batch:
            raise InputError(
                f"sampler.classes_per_batch={classes_per_batch}: the training split has only {len(self._drawn)} "
                f"classes with images_per_class={images_per_class} images"
            )
        self.wanted_neighbors = 0
        self._class_of_row, self._sizes = class_of_row, sizes
        self._rows = np.split(np.argsort(class_of_row, kind="stable"), sizes.cumsum()[:-1])
        self.images_per_class = images_per_class
        self._classes_per_batch = classes_per_batch
        self._candidates = min(candidate_classes, len(self._drawn))
        self._seed = seed
        self._embeddings: Floats = np.zeros((len(sizes), 1), np.float32)
        if class_embeddings is not None:
            self.set_class_embeddings(class_embeddings)
        images = int(sizes[self._drawn].sum())
        super().__init__(batches_per_epoch or -(-images // (classes_per_batch * images_per_class)))

    def set_class_embeddings(self, embeddings: ArrayLike) -> None:
        """(number of classes, D), row c for the class with the c-th smallest label; copied."""
        array = np.asarray(embeddings).astype(np.float32)
        count = len(self._embeddings)
        if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
            raise InputError(f"class embeddings of shape {array.shape}: must be ({count}, D) finite numbers")
        self._embeddings = array

    def learn(self, embeddings: ArrayLike, neighbors: ArrayLike) -> None:  # noqa: ARG002
        """Takes the means of the classes' images; see `LearnsFromEmbeddings`."""
        rows = np.asarray(embeddings)
        sums = np.zeros((len(self._sizes), rows.shape[1]))
        np.add.at(sums, self._class_of_row, rows)
        self.set_class_embeddings(sums / self._sizes[:, None])

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(self._epoch, self._embeddings)

    def _batches(self, epoch: int, embeddings: Floats) -> Iterator[list[int]]:
        for number in range(len(self)):
            rng = np.random.default_rng((self._seed, epoch, number))
            candidates = rng.choice(self._drawn, self._candidates, replace=False)
            classes = candidates[_close_together(embeddings[candidates], self._classes_per_batch)]
            images = [rng.choice(self._rows[c], self.images_per_class, replace=False) for c in classes]
            yield np.concatenate(images).tolist()


def _close_together(embeddings: Floats, count: int) -> list[int]:
    """(n, D) -> the first row, then again and again the row nearest to any chosen before; ties: the first"""
    halves = np.square(embeddings).sum(axis=1) / 2
    distances = halves[:, None] + halves - embeddings @ embeddings.T  # half the squared ones
    chosen = [0]
    nearest = distances[0]  # to any row chosen; infinite for those
    while len(chosen) < count:
        nearest[chosen[-1]] = np.inf
        chosen.append(int(nearest.argmin()))
        nearest = np.where(np.isinf(nearest), np.inf, np.minimum(nearest, distances[chosen[-1]]))
    return chosen
