from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dml.runtime.errors import check_choice
from dml.samplers.base import EpochSampler, Ints, check_settings, choose_classes_per_batch, number_classes

SHORT_CLASSES = ("repeat", "fill", "drop")
# Number of images drawn at once: a draw takes about a millisecond, however few images are drawn.
SMALLEST_PIECE = 2**12


class ClassBalancedSampler(EpochSampler):
    """Draws batches of C classes with K images each.

    A batch is a list of C·K row indices, in which the images of a class are adjacent.

    Order: classes come in rounds. Each round is a new shuffle of all classes, and the rounds are cut into batches so
    that no batch contains a class twice. Every class is therefore drawn equally often, whatever its size. The images
    of a class come from a shuffled queue, which is shuffled again when it is empty. So all images of a class are used
    before one repeats, also across epochs, and a class with K or more images has no image twice in a batch.

    Epoch: by default an epoch has ceil(N / (C·K)) batches, where N is the number of images of the classes that are
    drawn. These are as many images as in one pass over the data, but not each image once: every class gives about
    N / (number of classes) images. Images of a larger class that are left come first in the next epochs; images of a
    smaller class are used several times. Epoch e is the batches from e·B to (e + 1)·B - 1 of one endless sequence,
    which depends on labels, C, K, `short_classes` and the seed only. `set_epoch` jumps to any epoch.

    Randomness: the classes are shuffled by `default_rng((seed, 0, round))`, and the images of the classes of n images
    by `default_rng((seed, n, pass))`. The epoch is no part of the seed, because an epoch goes on with the shuffles
    that the epoch before has begun.

    In distributed training every process makes the same batches, and the loader takes a contiguous share of each. No
    class is then on two ranks if K divides the share, except that with `short_classes` "fill" one class may be.

    >>> sampler = ClassBalancedSampler([0, 0, 0, 1, 1, 1, 2, 2, 2], classes_per_batch=2, images_per_class=2)
    >>> len(sampler), [len(batch) for batch in sampler]
    (3, [4, 4, 4])

    Args:
        classes_per_batch: number of classes in a batch, C; "auto" takes 20, or all that can be drawn if they are fewer.
        short_classes: treatment of classes with fewer than K images. "repeat" repeats their images in the batch, as
            evenly as possible. "drop" never draws these classes. "fill" takes the images that there are and adds
            further classes until the batch has C·K images; the last class may be cut, even to one image, and the next
            batch then begins with the rest of it. (If all classes together give less than K - 1 images more than a
            batch, a round is one batch, the images left are skipped, and images of the cut classes may repeat early.)
        batches_per_epoch: number of batches of an epoch, B; None computes it from the number of images.
        rows: (N,) row indices of the images, for a part of a data set; None for 0 to N - 1.
    """

    def __init__(
        self,
        labels: ArrayLike,
        classes_per_batch: int | str,
        images_per_class: int,
        *,
        short_classes: str = "repeat",
        batches_per_epoch: int | None = None,
        rows: Ints | None = None,
        seed: int = 0,
    ) -> None:
        check_settings(images_per_class=images_per_class, batches_per_epoch=batches_per_epoch, seed=seed)
        classes, sizes = number_classes(labels)
        draw_counts = images_per_draw(sizes, images_per_class, short_classes)
        is_drawn = draw_counts > 0
        # The rows of class c are rows[starts[c] : starts[c] + sizes[c]].
        self._rows, self._part = np.argsort(classes, kind="stable"), rows
        self._starts = (sizes.cumsum() - sizes)[is_drawn]
        self._sizes = sizes[is_drawn]
        self._draw_counts = draw_counts[is_drawn]
        drawable = min(len(self._sizes), int(draw_counts.sum()) // images_per_class)  # "fill" may need further classes
        self.classes_per_batch = choose_classes_per_batch(classes_per_batch, sizes, drawable, images_per_class)
        self.images_per_class = images_per_class
        self._batch_size = self.classes_per_batch * images_per_class
        self._classes = _Queue(self._draw_counts, self._batch_size, (seed, 0))
        self._batches_per_pass = -(-int(self._sizes.sum()) // self._batch_size)
        self._seed = seed
        super().__init__(batches_per_epoch or self._batches_per_pass)

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        first = epoch * len(self)
        for batch in self.slice_batches(first, first + len(self)):
            yield batch.tolist()

    def slice_batches(self, first: int, last: int) -> Iterator[Ints]:
        """Yield the batches from first to last - 1 of the endless sequence, each as C·K row indices."""
        # The batches are drawn in pieces to bound the memory.
        piece = max(self._batches_per_pass, SMALLEST_PIECE // self._batch_size)
        for start in range(first, last, piece):
            for batch in self._batches(start, min(start + piece, last)):
                yield batch if self._part is None else self._part[batch]

    def _batches(self, first: int, last: int) -> Ints:
        """Draw the batches from first to last - 1 -> (last - first, C·K) row indices."""
        begin, end = first * self._batch_size, last * self._batch_size
        length = self._classes.length
        first_round, last_round = begin // length, -(-end // length)
        images = self._images(first_round, last_round)
        is_used = np.arange(images.shape[2]) < self._draw_counts[:, None]
        orders = self._classes.passes(first_round, last_round)[:, 0]
        rounds = [images[order, index][is_used[order]][:length] for index, order in enumerate(orders)]
        offset = first_round * length
        return np.concatenate(rounds)[begin - offset : end - offset].reshape(-1, self._batch_size)

    def _images(self, first: int, last: int) -> Ints:
        """Draw the rows (classes, rounds, K) of the rounds from first to last - 1; draw_counts says how many count."""
        images = np.zeros((len(self._sizes), last - first, self._draw_counts.max()), np.int64)
        for size in np.unique(self._sizes):  # classes of equal size begin their passes in the same rounds
            members = np.flatnonzero(self._sizes == size)
            count = int(self._draw_counts[members[0]])
            offsets = _draw_offsets(int(size), count, len(members), self._seed, first, last)
            images[members, :, :count] = self._rows[self._starts[members, None, None] + offsets]
        return images


@dataclass(frozen=True)
class _Queue:
    """An endless queue of shuffled passes, where item i has weights[i] positions; no window has an item twice."""

    weights: Ints
    window: int
    key: tuple[int, ...]
    rows: int = 1

    @property
    def length(self) -> int:
        """Number of positions of a pass that are read: nearly always all."""
        total, heaviest = int(self.weights.sum()), int(self.weights.max())
        # The end of a window may cut an item in two. If a pass is hardly longer than a window, filling the next window
        # would need that item a second time. Such a pass is read for one window only, and its rest is skipped.
        return self.window if total - self.window < heaviest - 1 else total

    def passes(self, first: int, last: int) -> Ints:
        """Compute the order of the items in the passes from first to last - 1 -> (last - first, rows, n)."""
        start = self._last_independent(first)
        order = self._shuffled(max(start - 1, 0))
        orders = []
        for index in range(start, last):
            order = self._delay_repeats(self._shuffled(index), order, self._carried_over(index))
            if index >= first:
                orders.append(order)
        return np.stack(orders)

    def _shuffled(self, index: int) -> Ints:
        items = np.tile(np.arange(len(self.weights)), (self.rows, 1))
        return np.random.default_rng((*self.key, index)).permuted(items, axis=1)

    def _carried_over(self, index: int) -> int:
        """Compute how many positions of the window that crosses into a pass are in the pass before; 0 if none is."""
        return index * self.length % self.window

    def _last_independent(self, index: int) -> int:
        """Return the last pass, up to this one, that depends only on two shuffles: of itself and of the pass before."""
        # `_delay_repeats` changes only the first window + 2 (heaviest - 1) positions of a pass. The next pass depends
        # on the end of this one alone, which may begin within a cut item, another heaviest - 1 positions earlier. In
        # a long pass that end is as it was shuffled. If passes are short, a pass into which no window crosses is near:
        # at most `window` passes back.
        spare = self.length - self.window - 3 * (int(self.weights.max()) - 1)
        while self._carried_over(index) > max(spare, 0):
            index -= 1
        return index

    def _delay_repeats(self, order: Ints, previous: Ints, carried_over: int) -> Ints:
        """Move items that the crossing window already holds from the pass before (rows, n) behind that window."""
        if carried_over == 0:
            return order
        in_window = np.zeros(order.shape, dtype=bool)
        crossing = self.weights[previous].cumsum(axis=1) > self.length - carried_over
        np.put_along_axis(in_window, previous, crossing, axis=1)
        in_window = np.take_along_axis(in_window, order, axis=1)
        free_weights = np.where(in_window, 0, self.weights[order])
        is_ahead = ~in_window & (free_weights.cumsum(axis=1) - free_weights < self.window - carried_over)
        return np.take_along_axis(order, np.argsort(~is_ahead, axis=1, kind="stable"), axis=1)


def _draw_offsets(size: int, count: int, classes: int, seed: int, first: int, last: int) -> Ints:
    """Draw ``count`` of ``size`` images of several classes in each round -> their numbers (classes, rounds, count)."""
    queued = count % size or size  # a class smaller than the count gives complete copies of itself as well
    queue = _Queue(np.ones(size, np.int64), queued, (seed, size), rows=classes)
    first_pass, last_pass = first * queued // size, -(-last * queued // size)
    sequence = queue.passes(first_pass, last_pass).swapaxes(0, 1).reshape(classes, -1)
    begin = first_pass * size
    drawn = sequence[:, first * queued - begin : last * queued - begin].reshape(classes, last - first, queued)
    copies = np.tile(np.arange(size), (count - queued) // size)
    return np.concatenate([np.broadcast_to(copies, (*drawn.shape[:2], len(copies))), drawn], axis=2)


def images_per_draw(sizes: Ints, images_per_class: int, short_classes: str) -> Ints:
    """Compute how many images each class (classes,) gives when it is drawn; a class that is never drawn gives 0.

    >>> images_per_draw(np.array([1, 2, 5]), images_per_class=2, short_classes="drop").tolist()
    [0, 2, 2]
    """
    check_choice("sampler.short_classes", short_classes, SHORT_CLASSES)
    if short_classes == "fill":
        return np.minimum(sizes, images_per_class)
    return np.where((sizes < images_per_class) & (short_classes == "drop"), 0, images_per_class)
