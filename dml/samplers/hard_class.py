from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError, check_number, check_whole
from dml.samplers.base import EpochSampler, Ints, check_settings, choose_classes_per_batch, number_classes

Floats = NDArray[np.float32]


class HardClassSampler(EpochSampler):
    """Draws batches of C classes with K images each, of which C - 1 classes are hard for the first one.

    This is N-pair sampling with hard negative classes (Sohn, 2016) as the thesis on local neighborhood sampling has it,
    section 2.1.2.4. For each batch, random candidate classes are drawn, and K different images of each. The first
    candidate is the anchor class: its first image is the anchor i, the others are the positives j. Another class
    violates the triplet constraint, by which Eq. 2.12 and 2.13 choose negatives, if an image k that was drawn of it has
    a loss in Eq. 2.11::

        D(i, k)^2 < max_j D(i, j)^2 + margin          D: Euclidean distance of two embeddings

    C - 1 of these classes are drawn, each with the same probability. If there are too few, the batch has all of them,
    and of the others those nearest to the anchor. Classes with fewer than K images are never drawn.

    `set_embeddings` sets the embeddings for the next `iter()`. Until they are set, all classes violate the constraint,
    and the batches are those of plain N-pair sampling.

    Departure: Sohn adds one class after the other, each hard for those before it.

    Epoch: by default an epoch has ceil(N / (C·K)) batches, where N is the number of images of classes with K images or
    more. Batch t depends on labels, embeddings, settings and `default_rng((seed, epoch, t))` only.

    >>> sampler = HardClassSampler([0, 0, 1, 1, 2, 2], classes_per_batch=2, embeddings=[[0], [0], [9], [9], [9], [9]])
    >>> len(sampler), sorted(map(len, sampler))
    (2, [4, 4])

    Args:
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that can be drawn if they are fewer.
        embeddings: (N, D) embeddings of the images; None if they are set later.
        margin: margin of the triplet constraint, in squared distances.
        candidate_classes: number of random classes to choose from for each batch; all if there are fewer.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int | str,
        images_per_class: int = 2,
        *,
        embeddings: ArrayLike | None = None,
        margin: float = 0.2,
        candidate_classes: int = 1000,
        batches_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        check_settings(images_per_class=images_per_class, batches_per_epoch=batches_per_epoch, seed=seed)
        check_number("sampler.margin", margin, least=0)
        classes, sizes = number_classes(labels)
        self._drawable = np.flatnonzero(sizes >= images_per_class)
        self.classes_per_batch = choose_classes_per_batch(
            classes_per_batch, sizes, len(self._drawable), images_per_class
        )
        check_whole("sampler.candidate_classes", candidate_classes, least=self.classes_per_batch)
        self.num_bank_neighbors = 0
        self._members = np.split(np.argsort(classes, kind="stable"), sizes.cumsum()[:-1])
        self.images_per_class = images_per_class
        self.margin = margin
        self._candidates = min(candidate_classes, len(self._drawable))
        self._seed = seed
        self._embeddings: Floats = np.zeros((len(np.asarray(labels)), 1), np.float32)
        if embeddings is not None:
            self.set_embeddings(embeddings)
        images = int(sizes[self._drawable].sum())
        super().__init__(batches_per_epoch or -(-images // (self.classes_per_batch * images_per_class)))

    def set_embeddings(self, embeddings: ArrayLike) -> None:
        """Set the embeddings (N, D) of the images for the next `iter()`."""
        array = np.asarray(embeddings).astype(np.float32)
        count = len(self._embeddings)
        if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
            raise InputError(f"embeddings of shape {array.shape}: must be ({count}, D) finite numbers")
        self._embeddings = array

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Set the embeddings of the images; see `UsesEmbeddingBank`."""
        self.set_embeddings(bank.embeddings.numpy())
        self._embeddings[~self._embeddings.any(axis=1)] = np.nan  # unreadable images, which are 0 there, are near none

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        return self._batches(epoch, self._embeddings)

    def _batches(self, epoch: int, embeddings: Floats) -> Iterator[list[int]]:
        for number in range(len(self)):
            rng = np.random.default_rng((self._seed, epoch, number))
            candidates = rng.choice(self._drawable, self._candidates, replace=False)
            drawn = self._draw_members(candidates, rng)
            yield drawn[self._choose_classes(embeddings[drawn], rng)].ravel().tolist()

    def _draw_members(self, classes: Ints, rng: np.random.Generator) -> Ints:
        """Draw K different rows of each class -> (n, K); a call of ``choice`` for each class takes far longer."""
        members = [self._members[c] for c in classes]
        sizes, rows = np.array([*map(len, members)]), np.concatenate(members)
        order = np.lexsort((rng.random(len(rows)), np.repeat(np.arange(len(classes)), sizes)))
        drawn: Ints = rows[order[(sizes.cumsum() - sizes)[:, None] + np.arange(self.images_per_class)]]
        return drawn

    def _choose_classes(self, embeddings: Floats, rng: np.random.Generator) -> Ints:
        """Choose C of the classes whose drawn images have the embeddings (n, K, D); the first is the anchor class."""
        squared = np.square(embeddings - embeddings[0, 0]).sum(axis=2)
        nearest = np.fmin.reduce(squared[1:], axis=1)
        violates = nearest < np.fmax.reduce(squared[0]) + self.margin
        order = np.lexsort((np.where(violates, rng.random(len(nearest)), nearest), ~violates))
        return np.concatenate([[0], 1 + order[: self.classes_per_batch - 1]])
