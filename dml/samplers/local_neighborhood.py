import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError, check_whole
from dml.samplers.base import EpochSampler, Ints, check_settings, number_classes, take_finest_labels

logger = logging.getLogger(__name__)

Bools = NDArray[np.bool_]

SMALLEST = 3
"""Size of the smallest group: a center, a similar row and a dissimilar row."""

CHUNK = 512
"""Number of centers that are tested together."""


class Group(NamedTuple):
    """A center and the rows that were added to the batch together with it."""

    center: int
    members: list[int]  # neighbors, nearest first, and then rows drawn at random


@dataclass(frozen=True)
class Neighborhoods:
    """The neighborhoods of all rows."""

    classes: Ints  # (N,) class of each row, from 0 to C - 1
    sizes: Ints  # (C,) number of rows of each class
    groups: Ints  # (N, K + 1) each row and its neighbors, nearest first
    similar: Bools  # (N, K) whether each neighbor has the class of the row
    mixed: Bools  # (N,) whether a row has both similar and dissimilar neighbors

    @classmethod
    def from_table(cls, classes: Ints, neighbors: ArrayLike, num_neighbors: int | None) -> "Neighborhoods":
        """Build the neighborhoods from a table (N, K) of neighbors, of which ``num_neighbors`` columns count."""
        table = _check_table(np.asarray(neighbors), len(classes))[:, :num_neighbors]
        groups = np.concatenate([np.arange(len(classes))[:, None], table.astype(np.int64)], axis=1)
        similar = classes[:, None] == classes[groups[:, 1:]]
        return cls(classes, np.bincount(classes), groups, similar, similar.any(axis=1) & ~similar.all(axis=1))


def _check_table(table: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the table of neighbors, or raise InputError if it isn't one of ``count`` rows."""
    if table.ndim == 2 and len(table) == count and table.size and np.issubdtype(table.dtype, np.integer):
        with_own_row = np.sort(np.concatenate([np.arange(count)[:, None], table], axis=1), axis=1)
        is_distinct = (with_own_row[:, 1:] != with_own_row[:, :-1]).all()
        if is_distinct and table.min() >= 0 and table.max() < count:
            return table
    raise InputError(
        f"neighbors of shape {table.shape}, {table.dtype}: must be ({count}, K) integers, the K >= 1 rows nearest to "
        f"each row, from 0 to {count - 1}, all different and without itself"
    )


class NeighborhoodBatch:
    """A batch that is filled with groups."""

    def __init__(self, table: Neighborhoods, size: int, rng: np.random.Generator) -> None:
        self.table = table
        self.rng = rng
        self.room = size
        self.free = np.ones(len(table.classes), dtype=bool)
        self.groups: list[Group] = []
        self.counts: Counter[str] = Counter()  # number of groups of each kind, and of random rows

    def add_groups(self, kind: str, centers: Ints, start: int, accepts: Callable[[Ints], Bools]) -> None:
        """Add the groups of accepted centers, each tried once, in turn from ``start`` on, while the batch has room."""
        position, end = start, start + len(centers)
        while position < end and self.room >= SMALLEST:
            chunk = centers.take(np.arange(position, min(position + CHUNK, end)), mode="wrap")
            accepted = accepts(chunk)
            first = int(accepted.argmax())
            if accepted[first]:
                center = int(chunk[first])
                self._add(Group(center, self._choose_members(center, self._next_size() - 1)))
                self.counts[kind] += 1
                position += first + 1
            else:
                position += len(chunk)

    def add_random_rows(self) -> None:
        """Fill the batch with random rows that aren't in it yet."""
        if self.room:
            self.counts["random"] += self.room
            center, *members = self.rng.choice(np.flatnonzero(self.free), self.room, replace=False).tolist()
            self._add(Group(center, members))

    def is_whole(self, centers: Ints) -> Bools:
        """Tell which centers pass steps 3 and 4, if all of them pass step 3. (n,) -> (n,)"""
        accepted: Bools = np.all(self.free[self.table.groups[centers]], axis=1)
        return accepted

    def is_mixed(self, centers: Ints) -> Bools:
        """Tell which centers pass step 3 with their free neighbors alone and are free themselves. (n,) -> (n,)"""
        free, similar = self.free[self.table.groups[centers]], self.table.similar[centers]
        mixed: Bools = np.any(free[:, 1:] & similar, axis=1) & np.any(free[:, 1:] & ~similar, axis=1)
        return mixed & free[:, 0]

    def can_be_completed(self, centers: Ints) -> Bools:
        """Tell for which free centers there are free similar and dissimilar rows in the whole split. (n,) -> (n,)"""
        classes, sizes = self.table.classes, self.table.sizes
        free_counts = sizes - np.bincount(classes[~self.free], minlength=len(sizes))
        num_partners = free_counts[classes[centers]] - 1
        accepted: Bools = self.free[centers] & (num_partners >= 1) & (num_partners + 1 < self.free.sum())
        return accepted

    def _next_size(self) -> int:
        """Compute the size of the next group: K + 1, or less if cutting the groups after it isn't enough."""
        full_size = max(self.table.groups.shape[1], SMALLEST)
        count = min(-(-self.room // full_size), self.room // SMALLEST)
        surplus = count * full_size - self.room
        size: int = full_size - max(0, surplus - (count - 1) * (full_size - SMALLEST))
        return size

    def _choose_members(self, center: int, count: int) -> list[int]:
        """Choose a center's nearest free neighbors; draw a similar or a dissimilar row if no neighbor is."""
        near = self.table.groups[center, 1:]
        free = self.free[near]
        near, similar = near[free], self.table.similar[center][free]
        drawn = []
        if not similar.any():
            drawn.append(self._draw(self.table.classes == self.table.classes[center], center))
        if similar.all():
            drawn.append(self._draw(self.table.classes != self.table.classes[center], center))
        members: list[int] = near[_choose_mixed(similar, count - len(drawn))].tolist()
        return members + drawn

    def _draw(self, candidates: Bools, center: int) -> int:
        """Draw a free row from the candidates (N,) other than the center."""
        rows = np.flatnonzero(candidates & self.free)
        return int(self.rng.choice(rows[rows != center]))

    def _add(self, group: Group) -> None:
        rows = [group.center, *group.members]
        self.free[rows] = False
        self.room -= len(rows)
        self.groups.append(group)


def _choose_mixed(similar: Bools, count: int) -> Ints:
    """Choose the first ``count`` indices, but always the first similar and the first dissimilar one."""
    if len(similar) <= count:
        return np.arange(len(similar))
    is_chosen = np.zeros(len(similar), dtype=bool)
    is_chosen[[similar.argmax(), similar.argmin()]] = True
    is_chosen[np.flatnonzero(~is_chosen)[: count - is_chosen.sum()]] = True
    return np.flatnonzero(is_chosen)


class HardShares(NamedTuple):
    """Shares of a batch that tell how much there is to learn; NaN if a share has nothing to count."""

    hard_negatives: float  # pairs (i, j) of two classes in which j is one of i's K stored neighbors (thesis, 3.4)
    usable_positives: float  # pairs of one class in which j is one of them; the others are outliers (3.4)
    anchors: float  # rows with another row of the same class in the batch, N_p / N of Eq. 3.5; others get no gradient


class LocalNeighborhoodSampler(EpochSampler):
    """Draws batches of random images (centers) together with their nearest neighbors.

    This is local neighborhood sampling (LNS) of the thesis on it, section 3.4. A batch is a list of `batch_size`
    different row indices. It consists of groups, each a center with K neighbors. A neighbor is similar if its class
    is that of the center. The numbers are the steps of the thesis: draw a random center (2). Its neighbors must
    include a similar and a dissimilar row (3). Neither the center nor a neighbor may be in the batch yet (4). Add all
    K + 1 rows to the batch (5). Repeat until the batch is full. The last group is cut to the rows that are missing. If
    it would have fewer than three rows, groups before it are cut too. A cut group consists of the center, the nearest
    similar row, the nearest dissimilar row and the nearest other rows.

    If no center meets the rules, they are relaxed in this order. First, neighbors that are in the batch already are
    skipped, if a similar and a dissimilar row remain. Then, if a center has no similar or no dissimilar neighbor, one
    is drawn from the whole training split. At last, and for one or two missing rows, which make no group, any rows are
    drawn. After each epoch with relaxed rules, a warning tells how often that happened.

    Epoch: by default an epoch has ceil(N / batch_size) batches. Centers are tried in the order of
    `default_rng((seed, epoch)).permutation(N)` without those that fail step 3, beginning in batch t with number
    t·ceil(batch_size / (K + 1)) of that order. All other random draws of batch t come from
    `default_rng((seed, epoch, t))`. A row is therefore rarely a center twice in an epoch, but how often it is drawn as
    a neighbor depends on the table. Batch t depends on labels, table, settings, seed, epoch and t only.

    In distributed training every process makes the same batches, and the loader takes a share of each.

    >>> table = [[1, 2], [0, 3], [3, 0], [2, 1]]  # the two nearest neighbors of each row
    >>> sampler = LocalNeighborhoodSampler([0, 0, 1, 1], table, batch_size=3)
    >>> len(sampler), [len(batch) for batch in sampler]
    (2, [3, 3])

    Args:
        neighbors: (N, K) table of each row's nearest rows, nearest first, without the row itself; None if
            `set_neighbors` sets it later.
        num_neighbors: number of columns of the table to use, K; None uses all. The thesis has 16.
    """

    def __init__(
        self,
        labels: ArrayLike,
        neighbors: ArrayLike | None = None,
        batch_size: int = 128,
        *,
        num_neighbors: int | None = None,
        batches_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("sampler.batch_size", batch_size, least=SMALLEST)
        check_settings(num_neighbors=num_neighbors, batches_per_epoch=batches_per_epoch, seed=seed)
        classes, _ = number_classes(labels)
        if batch_size > len(classes):
            raise InputError(f"sampler.batch_size={batch_size}: the training split has only {len(classes)} images")
        super().__init__(batches_per_epoch or -(-len(classes) // batch_size))
        self.num_neighbors = num_neighbors
        self.num_bank_neighbors = num_neighbors or 16
        self._classes = classes
        self._batch_size = batch_size
        self._seed = seed
        self._table: Neighborhoods | None = None
        if neighbors is not None:
            self.set_neighbors(neighbors)

    def set_neighbors(self, neighbors: ArrayLike) -> None:
        """Set the table of neighbors (N, K) for the next `iter()` or `groups()`; a running epoch doesn't change."""
        self._table = Neighborhoods.from_table(self._classes, neighbors, self.num_neighbors)

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Set the table of neighbors; see `UsesEmbeddingBank`."""
        self.set_neighbors(bank.neighbors.numpy())

    def groups(self, batch: int) -> list[Group]:
        """Return the groups of a batch of the current epoch in order; rows that no rule chose are the last group."""
        return self._plan_epoch(self._epoch).fill_batch(batch).groups

    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        return self._batches(self._plan_epoch(epoch))

    def _plan_epoch(self, epoch: int) -> "_Epoch":
        if self._table is None:
            raise InputError(
                "sampler: local neighborhoods need a table of neighbors, and none was set yet; call set_neighbors"
            )
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._classes))
        return _Epoch(self._table, order, self._batch_size, (self._seed, epoch))

    def _batches(self, plan: "_Epoch") -> Iterator[list[int]]:
        counts: Counter[str] = Counter()
        try:
            for number in range(len(self)):
                batch = plan.fill_batch(number)
                counts += batch.counts
                yield [row for group in batch.groups for row in (group.center, *group.members)]
        finally:  # a run that ends within the epoch warns too
            if counts.keys() - {"whole"}:
                logger.warning(
                    "local neighborhood sampling, epoch %d: the rules could not be met for every batch: of %d groups "
                    "%d skip neighbors that were in the batch already and %d contain a row from outside the "
                    "neighborhood; %d rows were drawn at random",
                    plan.key[1],
                    counts["whole"] + counts["thinned"] + counts["completed"],
                    counts["thinned"],
                    counts["completed"],
                    counts["random"],
                )


def hard_shares(labels: ArrayLike, neighbors: ArrayLike, batch: ArrayLike) -> HardShares:
    """Compute how much a batch (B,) of rows offers to learn, by the stored table of neighbors (N, K), for the log.

    >>> hard_shares([0, 0, 1, 1], [[1, 2], [0, 3], [3, 0], [2, 1]], batch=[0, 1, 2]).usable_positives
    1.0
    """
    rows = np.asarray(batch)
    classes = take_finest_labels(labels)[rows]
    similar = classes[:, None] == classes
    near = (np.asarray(neighbors)[rows][:, :, None] == rows).any(axis=1)
    off_diagonal = ~np.eye(len(rows), dtype=bool)
    return HardShares(
        hard_negatives=_share(near, ~similar),
        usable_positives=_share(near, similar & off_diagonal),
        anchors=float((similar & off_diagonal).any(axis=1).mean()),
    )


def _share(is_counted: Bools, mask: Bools) -> float:
    """Compute the share of the entries in the mask that are counted; NaN if the mask is empty."""
    return float(is_counted[mask].mean()) if mask.any() else float("nan")


@dataclass(frozen=True)
class _Epoch:
    """Fills the batches of an epoch, whose centers are tried in the shuffled ``order`` (N,)."""

    table: Neighborhoods
    order: Ints
    batch_size: int
    key: tuple[int, int]

    @cached_property
    def mixed_order(self) -> Ints:
        """Return the rows that pass step 3, in the order in which they are tried as centers."""
        return self.order[self.table.mixed[self.order]]

    def fill_batch(self, number: int) -> NeighborhoodBatch:
        batch = NeighborhoodBatch(self.table, self.batch_size, np.random.default_rng((*self.key, number)))
        start = number * -(-self.batch_size // self.table.groups.shape[1])
        batch.add_groups("whole", self.mixed_order, start, batch.is_whole)
        batch.add_groups("thinned", self.mixed_order, start, batch.is_mixed)
        batch.add_groups("completed", self.order, start, batch.can_be_completed)
        batch.add_random_rows()
        return batch
