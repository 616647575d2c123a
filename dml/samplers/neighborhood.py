from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.errors import InputError
from dml.samplers.base import Ints

Bools = NDArray[np.bool_]

SMALLEST = 3
"""Size of the smallest group: a centre, a similar row and a dissimilar row."""

CHUNK = 512
"""Number of centres that are tested together."""


class Group(NamedTuple):
    """A centre and the rows that were added to the batch together with it.

    Args:
        centre: row index of the centre.
        members: row indices of the neighbours, nearest first, and then of rows drawn at random.
    """

    centre: int
    members: list[int]


@dataclass(frozen=True)
class Neighborhoods:
    """The neighbourhoods of all rows.

    Args:
        classes: (N,) class of each row, from 0 to C - 1.
        sizes: (C,) number of rows of each class.
        groups: (N, K + 1) each row and its neighbours, nearest first.
        similar: (N, K) whether each neighbour has the class of the row.
        mixed: (N,) whether a row has both similar and dissimilar neighbours.
    """

    classes: Ints
    sizes: Ints
    groups: Ints
    similar: Bools
    mixed: Bools

    @classmethod
    def from_table(cls, classes: Ints, neighbors: ArrayLike, num_neighbors: int | None) -> "Neighborhoods":
        """Build the neighbourhoods from a table of neighbours.

        Args:
            classes: (N,) class of each row, from 0 to C - 1.
            neighbors: (N, K) row indices of each row's neighbours, nearest first.
            num_neighbors: number of columns of the table to use; None uses all.

        Raises:
            InputError: if the table doesn't fit the classes.
        """
        table = _check_table(np.asarray(neighbors), len(classes))[:, :num_neighbors]
        groups = np.concatenate([np.arange(len(classes))[:, None], table.astype(np.int64)], axis=1)
        similar = classes[groups[:, 1:]] == classes[:, None]
        return cls(classes, np.bincount(classes), groups, similar, similar.any(axis=1) & ~similar.all(axis=1))


def _check_table(table: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the table of neighbours, or raise InputError if it isn't one of ``count`` rows."""
    if table.ndim != 2 or len(table) != count or not table.size or not np.issubdtype(table.dtype, np.integer):
        raise InputError(f"neighbors of shape {table.shape}, {table.dtype}: must be ({count}, K) integers, K >= 1")
    if table.min() < 0 or table.max() >= count:
        raise InputError(f"neighbors: rows {table.min()} to {table.max()}, the training split has 0 to {count - 1}")
    if (contains_itself := (table == np.arange(count)[:, None]).any(axis=1)).any():
        raise InputError(f"neighbors: row {contains_itself.argmax()} is among its own neighbours")
    ascending = np.sort(table, axis=1)
    if (has_repeats := (ascending[:, 1:] == ascending[:, :-1]).any(axis=1)).any():
        raise InputError(f"neighbors: row {has_repeats.argmax()} has a neighbour twice")
    return table


class NeighborhoodBatch:
    """A batch that is filled with groups.

    Args:
        table: neighbourhoods of all rows.
        size: number of rows of the full batch.
        rng: source of all random draws.
    """

    def __init__(self, table: Neighborhoods, size: int, rng: np.random.Generator) -> None:
        self.table = table
        self.rng = rng
        self.room = size
        self.free = np.ones(len(table.classes), dtype=bool)
        self.groups: list[Group] = []
        self.counts: Counter[str] = Counter()  # number of groups of each kind, and of random rows

    def add_groups(self, kind: str, centres: Ints, start: int, accepts: Callable[[Ints], Bools]) -> None:
        """Add the groups of all centres that are accepted, in turn, while the batch has room.

        A centre that isn't accepted isn't tried again: the fuller the batch, the fewer centres are accepted.

        Args:
            kind: name under which the groups are counted.
            centres: row indices of the centres to try.
            start: index of the first centre to try; after the last centre comes the first one.
            accepts: function that tells for each of several centres whether the batch accepts its group now.
        """
        position, end = start, start + len(centres)
        while position < end and self.room >= SMALLEST:
            chunk = centres.take(np.arange(position, min(position + CHUNK, end)), mode="wrap")
            accepted = accepts(chunk)
            first = int(accepted.argmax())
            if accepted[first]:
                centre = int(chunk[first])
                self._add(Group(centre, self._choose_members(centre, self._next_size() - 1)))
                self.counts[kind] += 1
                position += first + 1
            else:
                position += len(chunk)

    def add_random_rows(self) -> None:
        """Fill the batch with random rows that aren't in it yet."""
        if self.room:
            self.counts["random"] += self.room
            centre, *members = self.rng.choice(np.flatnonzero(self.free), self.room, replace=False).tolist()
            self._add(Group(centre, members))

    def is_whole(self, centres: Ints) -> Bools:
        """Tell which centres pass steps 3 and 4, if all of them pass step 3. (n,) -> (n,)"""
        accepted: Bools = np.all(self.free[self.table.groups[centres]], axis=1)
        return accepted

    def is_mixed(self, centres: Ints) -> Bools:
        """Tell which centres pass step 3 with their free neighbours alone and are free themselves. (n,) -> (n,)"""
        free, similar = self.free[self.table.groups[centres]], self.table.similar[centres]
        mixed: Bools = np.any(free[:, 1:] & similar, axis=1) & np.any(free[:, 1:] & ~similar, axis=1)
        return mixed & free[:, 0]

    def can_be_completed(self, centres: Ints) -> Bools:
        """Tell for which free centres there are free similar and dissimilar rows in the whole split. (n,) -> (n,)"""
        taken_classes = self.table.classes[~self.free]
        free_counts = self.table.sizes - np.bincount(taken_classes, minlength=len(self.table.sizes))
        class_counts = free_counts[self.table.classes[centres]]
        accepted: Bools = self.free[centres] & (class_counts >= 2) & (class_counts < free_counts.sum())
        return accepted

    def _next_size(self) -> int:
        """Compute the size of the next group: K + 1, or less if cutting the groups after it isn't enough."""
        full_size = max(self.table.groups.shape[1], SMALLEST)
        count = min(-(-self.room // full_size), self.room // SMALLEST)
        surplus = count * full_size - self.room
        size: int = full_size - max(0, surplus - (count - 1) * (full_size - SMALLEST))
        return size

    def _choose_members(self, centre: int, count: int) -> list[int]:
        """Choose a centre's nearest free neighbours; draw a similar or a dissimilar row if no neighbour is."""
        near = self.table.groups[centre, 1:]
        free = self.free[near]
        near, similar = near[free], self.table.similar[centre][free]
        drawn = []
        if not similar.any():
            drawn.append(self._draw(self.table.classes == self.table.classes[centre], centre))
        if similar.all():
            drawn.append(self._draw(self.table.classes != self.table.classes[centre], centre))
        members: list[int] = near[_choose_mixed(similar, count - len(drawn))].tolist()
        return members + drawn

    def _draw(self, candidates: Bools, centre: int) -> int:
        """Draw a free row from the candidates (N,) other than the centre."""
        rows = np.flatnonzero(candidates & self.free)
        return int(self.rng.choice(rows[rows != centre]))

    def _add(self, group: Group) -> None:
        rows = [group.centre, *group.members]
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
