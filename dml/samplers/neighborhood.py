from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.errors import InputError
from dml.samplers.base import Ints

Bools = NDArray[np.bool_]

SMALLEST = 3  # a group of the centre, a similar and a dissimilar row
CHUNK = 512  # centres looked at together


class Group(NamedTuple):
    """A centre and what came into the batch with it: its neighbours, nearest first, then what was drawn; all rows."""

    centre: int
    members: list[int]


@dataclass(frozen=True)
class Neighborhoods:
    """The neighbourhoods of all rows."""

    classes: Ints  # (N,) 0..C-1
    sizes: Ints  # (C,) rows of each class
    groups: Ints  # (N, K + 1): a row and its neighbours, nearest first
    similar: Bools  # (N, K): whether a neighbour is of the row's class
    mixed: Bools  # (N,): whether one neighbour is and one is not

    @classmethod
    def of(cls, classes: Ints, neighbors: ArrayLike, num_neighbors: int | None) -> "Neighborhoods":
        """classes (N,), the table (N, K) of which the first columns count; raises InputError if it does not fit"""
        table = _checked(np.asarray(neighbors), len(classes))[:, :num_neighbors]
        groups = np.concatenate([np.arange(len(classes))[:, None], table.astype(np.int64)], axis=1)
        similar = classes[groups[:, 1:]] == classes[:, None]
        return cls(classes, np.bincount(classes), groups, similar, similar.any(axis=1) & ~similar.all(axis=1))


def _checked(table: NDArray[Any], count: int) -> NDArray[Any]:
    if table.ndim != 2 or len(table) != count or not table.size or not np.issubdtype(table.dtype, np.integer):
        raise InputError(f"neighbors of shape {table.shape}, {table.dtype}: must be ({count}, K) integers, K >= 1")
    if table.min() < 0 or table.max() >= count:
        raise InputError(f"neighbors: rows {table.min()} to {table.max()}, the training split has 0 to {count - 1}")
    if (own := (table == np.arange(count)[:, None]).any(axis=1)).any():
        raise InputError(f"neighbors: row {own.argmax()} is among its own neighbours")
    ordered = np.sort(table, axis=1)
    if (twice := (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)).any():
        raise InputError(f"neighbors: row {twice.argmax()} has a neighbour twice")
    return table


class NeighborhoodBatch:
    """A batch in the making."""

    def __init__(self, table: Neighborhoods, size: int, rng: np.random.Generator) -> None:
        self.table = table
        self.rng = rng
        self.room = size
        self.free = np.ones(len(table.classes), dtype=bool)
        self.groups: list[Group] = []
        self.made: Counter[str] = Counter()  # groups of each kind, and random rows

    def add_groups(self, kind: str, centres: Ints, start: int, accepts: Callable[[Ints], Bools]) -> None:
        """Groups around those of `centres`, from place `start` on and round, that are accepted when their turn comes.

        One refused is not asked again: the fuller the batch, the fewer are accepted.
        """
        place, end = start, start + len(centres)
        while place < end and self.room >= SMALLEST:
            chunk = centres.take(np.arange(place, min(place + CHUNK, end)), mode="wrap")
            accepted = accepts(chunk)
            first = int(accepted.argmax())
            if accepted[first]:
                centre = int(chunk[first])
                self._add(Group(centre, self._members(centre, self._next_size() - 1)))
                self.made[kind] += 1
                place += first + 1
            else:
                place += len(chunk)

    def add_random(self) -> None:
        """Fills up with any free rows."""
        if self.room:
            self.made["random"] += self.room
            centre, *members = self.rng.choice(np.flatnonzero(self.free), self.room, replace=False).tolist()
            self._add(Group(centre, members))

    def is_whole(self, centres: Ints) -> Bools:
        """Steps 3 and 4 for `centres` whose neighbourhoods are mixed."""
        accepted: Bools = np.all(self.free[self.table.groups[centres]], axis=1)
        return accepted

    def is_mixed(self, centres: Ints) -> Bools:
        """Step 3 for the neighbours that are still free, step 4 for the centre alone."""
        free, similar = self.free[self.table.groups[centres]], self.table.similar[centres]
        mixed: Bools = np.any(free[:, 1:] & similar, axis=1) & np.any(free[:, 1:] & ~similar, axis=1)
        return mixed & free[:, 0]

    def can_be_completed(self, centres: Ints) -> Bools:
        """Whether the training split has another free row of the centre's class, and one of another class."""
        taken = self.table.classes[~self.free]
        left = self.table.sizes - np.bincount(taken, minlength=len(self.table.sizes))
        own = left[self.table.classes[centres]]
        accepted: Bools = self.free[centres] & (own >= 2) & (own < left.sum())
        return accepted

    def _next_size(self) -> int:
        """Of the next group: all K + 1, but for what the groups after it cannot be cut by."""
        whole = max(self.table.groups.shape[1], SMALLEST)
        count = min(-(-self.room // whole), self.room // SMALLEST)
        surplus = count * whole - self.room
        size: int = whole - max(0, surplus - (count - 1) * (whole - SMALLEST))
        return size

    def _members(self, centre: int, count: int) -> list[int]:
        """The `count` nearest free neighbours; one that is similar and one that is not are drawn if none is near."""
        near = self.table.groups[centre, 1:]
        free = self.free[near]
        near, similar = near[free], self.table.similar[centre][free]
        drawn = []
        if not similar.any():
            drawn.append(self._drawn(self.table.classes == self.table.classes[centre], centre))
        if similar.all():
            drawn.append(self._drawn(self.table.classes != self.table.classes[centre], centre))
        members: list[int] = near[_nearest(similar, count - len(drawn))].tolist()
        return members + drawn

    def _drawn(self, candidates: Bools, centre: int) -> int:
        rows = np.flatnonzero(candidates & self.free)
        return int(self.rng.choice(rows[rows != centre]))

    def _add(self, group: Group) -> None:
        rows = [group.centre, *group.members]
        self.free[rows] = False
        self.room -= len(rows)
        self.groups.append(group)


def _nearest(similar: Bools, count: int) -> Ints:
    """The first `count` places, the first similar and the first dissimilar one in any case."""
    if len(similar) <= count:
        return np.arange(len(similar))
    kept = np.zeros(len(similar), dtype=bool)
    kept[[similar.argmax(), similar.argmin()]] = True
    kept[np.flatnonzero(~kept)[: count - kept.sum()]] = True
    return np.flatnonzero(kept)
