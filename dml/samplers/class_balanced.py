from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dml.ops.errors import InputError
from dml.samplers.base import EpochSampler, Ints, check_whole, finest

SHORT_CLASSES = ("repeat", "fill", "drop")
SMALLEST_PIECE = 2**12  # images drawn at once, so that many share the cost of a draw, about a millisecond


class ClassBalancedSampler(EpochSampler):
    """Batches of C classes x K images: lists of C·K row indices, the images of a class adjacent.

    labels (N,) int, or (N, L), of which column 0, the finest level, counts.

    Order. Classes come in rounds, each a new shuffle of all classes, and the rounds are cut into batches;
    no class is in a batch twice. So every class is drawn equally often, whatever its size. The images of a
    class come from a shuffled queue of its own, shuffled again when exhausted: each is used before one
    repeats, also across epochs, and a class of K or more images has none twice in a batch.

    Epoch. `batches_per_epoch` batches, by default ceil(N / (C·K)), N counting the images of the classes
    drawn: as many images as one pass over the data, but not each image once. Every class gives about N /
    (number of classes) images an epoch: of a larger class the rest is unseen in that epoch and comes first
    in the next ones, a smaller class is seen several times. Epoch e is the batches e·B to (e + 1)·B - 1 of
    one endless sequence that depends on labels, C, K, short_classes and seed only. `set_epoch` finds the
    place directly; iterating carries nothing over.

    short_classes says what happens to classes of fewer than K images:
      repeat  their images repeat inside the batch, equally often give or take one.
      drop    they are never drawn: their images are never seen.
      fill    they give the images they have, and the batch takes further classes until it has C·K images. The
              last of them may be cut, even to a single image; the next batch then opens with the rest of that
              class. (If all classes together give less than K - 1 images more than one batch, a round is one
              batch, the rest is left out of it, and images of the classes cut may repeat early.)

    Randomness is `default_rng((seed, 0, round))` for the classes and `default_rng((seed, n, pass))` for the
    classes of n images, not (seed, epoch): an epoch goes on with the shuffles that the last did not use up.

    There is no rank: under DDP every process makes the same batches, and the loader takes its share of each.
    Shares are contiguous, so no class is on two ranks if K divides the share (with fill, one may be).

    Raises InputError for settings that the labels cannot meet.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int,
        images_per_class: int,
        *,
        short_classes: str = "repeat",
        batches_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("classes_per_batch", classes_per_batch, least=1)
        check_whole("images_per_class", images_per_class, least=1)
        check_whole("batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        check_whole("seed", seed, least=0)

        _, class_of_row, sizes = np.unique(finest(labels), return_inverse=True, return_counts=True)
        # How many images a class gives each time it is drawn.
        gives = images_given(sizes, images_per_class, short_classes)
        drawn = gives > 0
        # The rows of class c are rows[starts[c] : starts[c] + sizes[c]].
        self._rows = np.argsort(class_of_row, kind="stable")
        self._starts = (sizes.cumsum() - sizes)[drawn]
        self._sizes = sizes[drawn]
        self._gives = gives[drawn]
        _check_enough(sizes, self._gives, classes_per_batch, images_per_class)

        self.images_per_class = images_per_class
        self._batch_size = classes_per_batch * images_per_class
        self._classes = _Queue(self._gives, self._batch_size, (seed, 0))
        self._batches_per_pass = -(-int(self._sizes.sum()) // self._batch_size)
        self._seed = seed
        super().__init__(batches_per_epoch or self._batches_per_pass)

    def __iter__(self) -> Iterator[list[int]]:
        first = self._epoch * len(self)
        for batch in self.stretch(first, first + len(self)):
            yield batch.tolist()

    def stretch(self, first: int, last: int) -> Iterator[Ints]:
        """Batches first..last-1 of the endless sequence, whatever the epoch: C·K row indices each"""
        # In pieces, so that memory is bounded however long the stretch is.
        piece = max(self._batches_per_pass, SMALLEST_PIECE // self._batch_size)
        for start in range(first, last, piece):
            yield from self._batches(start, min(start + piece, last))

    def _batches(self, first: int, last: int) -> Ints:
        """(last - first, C·K) row indices"""
        begin, end = first * self._batch_size, last * self._batch_size
        length = self._classes.length
        first_round, last_round = begin // length, -(-end // length)
        images = self._images(first_round, last_round)
        given = np.arange(images.shape[2]) < self._gives[:, None]
        orders = self._classes.passes(first_round, last_round)[:, 0]
        rounds = [images[order, index][given[order]][:length] for index, order in enumerate(orders)]
        offset = first_round * length
        return np.concatenate(rounds)[begin - offset : end - offset].reshape(-1, self._batch_size)

    def _images(self, first: int, last: int) -> Ints:
        """Row indices drawn in rounds first..last-1: (classes, rounds, K), of class c the first gives[c]"""
        images = np.zeros((len(self._sizes), last - first, self._gives.max()), np.int64)
        for size in np.unique(self._sizes):  # classes of one size keep step: read together
            members = np.flatnonzero(self._sizes == size)
            gives = int(self._gives[members[0]])
            places = _visits(int(size), gives, len(members), self._seed, first, last)
            images[members, :, :gives] = self._rows[self._starts[members, None, None] + places]
        return images


@dataclass(frozen=True)
class _Queue:
    """An endless queue of shuffled passes over n items, read one window after another.

    Item i fills weights[i] places of a pass, and a window is `window` places. No item is in a window twice,
    also where a window crosses from one pass into the next. Passes are numbered from 0 and can be had without
    those before them. `rows` queues of one shape, each with its own shuffles, are held together.
    """

    weights: Ints
    window: int
    key: tuple[int, ...]
    rows: int = 1

    @property
    def length(self) -> int:
        """The places of a pass that are read: all, but for one case."""
        total, heaviest = int(self.weights.sum()), int(self.weights.max())
        # A window's end may cut an item. If a pass is hardly longer than a window, the next window could not
        # be filled without the cut item's next turn as well. Such a pass is one window; its rest is not read.
        return self.window if total - self.window < heaviest - 1 else total

    def passes(self, first: int, last: int) -> Ints:
        """Order of the items in passes first..last-1: (last - first, rows, n)"""
        start = self._independent(first)
        order = self._shuffled(max(start - 1, 0))
        orders = []
        for index in range(start, last):
            order = self._apart(self._shuffled(index), order, self._begun(index))
            if index >= first:
                orders.append(order)
        return np.stack(orders)

    def _shuffled(self, index: int) -> Ints:
        items = np.tile(np.arange(len(self.weights)), (self.rows, 1))
        return np.random.default_rng((*self.key, index)).permuted(items, axis=1)

    def _begun(self, index: int) -> int:
        """The places in the pass before of the window that crosses into this pass; 0 if none crosses."""
        return index * self.length % self.window

    def _independent(self, index: int) -> int:
        """The last pass up to this one that follows from its own shuffle and that of the pass before."""
        # `_apart` changes no more than the first window + 2 (heaviest - 1) places of a pass. Its end, which
        # is all that the next pass must know (and may start in a cut item, another heaviest - 1 places), is
        # as it was shuffled if the pass is long. If passes are short, one into which no window crosses is
        # near: at most `window` passes back.
        spare = self.length - self.window - 3 * (int(self.weights.max()) - 1)
        while self._begun(index) > max(spare, 0):
            index -= 1
        return index

    def _apart(self, order: Ints, previous: Ints, begun: int) -> Ints:
        """The items that the crossing window has from `previous` move behind its end: (rows, n)"""
        if begun == 0:
            return order
        held = np.zeros(order.shape, dtype=bool)
        np.put_along_axis(held, previous, self.weights[previous].cumsum(axis=1) > self.length - begun, axis=1)
        held = np.take_along_axis(held, order, axis=1)
        free = np.where(held, 0, self.weights[order])
        ahead = ~held & (free.cumsum(axis=1) - free < self.window - begun)
        return np.take_along_axis(order, np.argsort(~ahead, axis=1, kind="stable"), axis=1)


def _visits(size: int, gives: int, classes: int, seed: int, first: int, last: int) -> Ints:
    """What classes of `size` images give in rounds first..last-1: (classes, rounds, gives) in 0..size-1"""
    taken = gives % size or size  # from the queue; beyond that a short class gives whole copies of itself
    queue = _Queue(np.ones(size, np.int64), taken, (seed, size), rows=classes)
    first_pass, last_pass = first * taken // size, -(-last * taken // size)
    places = queue.passes(first_pass, last_pass).swapaxes(0, 1).reshape(classes, -1)
    offset = first_pass * size
    visits = places[:, first * taken - offset : last * taken - offset].reshape(classes, last - first, taken)
    copies = np.tile(np.arange(size), (gives - taken) // size)
    return np.concatenate([np.broadcast_to(copies, (*visits.shape[:2], len(copies))), visits], axis=2)


def images_given(sizes: Ints, images_per_class: int, short_classes: str) -> Ints:
    """How many images classes of these sizes give each time they are drawn; those never drawn give 0

    Raises InputError if `short_classes` is none of the ways.
    """
    if short_classes not in SHORT_CLASSES:
        raise InputError(f"sampler.short_classes={short_classes}: must be one of {', '.join(SHORT_CLASSES)}")
    if short_classes == "fill":
        return np.minimum(sizes, images_per_class)
    return np.where((sizes < images_per_class) & (short_classes == "drop"), 0, images_per_class)


def _check_enough(sizes: Ints, gives: Ints, classes_per_batch: int, images_per_class: int) -> None:
    """Whether the classes that are drawn fill a batch."""
    if len(gives) == 0:
        raise InputError(
            f"sampler.short_classes=drop: no class has images_per_class={images_per_class} images, "
            f"the largest has {sizes.max()}"
        )
    if classes_per_batch > len(gives):
        which = f" with images_per_class={images_per_class} images" if len(gives) < len(sizes) else ""
        raise InputError(
            f"sampler.classes_per_batch={classes_per_batch}: the training split has only {len(gives)} classes{which}"
        )
    if gives.sum() < classes_per_batch * images_per_class:
        raise InputError(
            f"sampler.short_classes=fill: a batch is {classes_per_batch} x {images_per_class} = "
            f"{classes_per_batch * images_per_class} images, the {len(gives)} classes of the training split "
            f"give only {gives.sum()}; make the batch smaller or use short_classes=repeat"
        )
