import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dml.ops.errors import InputError
from dml.samplers.base import EpochSampler, Ints, check_whole, finest
from dml.samplers.neighborhood import SMALLEST, Bools, Group, NeighborhoodBatch, Neighborhoods

logger = logging.getLogger(__name__)


class HardShares(NamedTuple):
    """What a batch offers to learn from, as fractions; nan where there is nothing to count.

    hard_negatives: of the ordered pairs (i, j) of different classes, those with j among the K stored neighbours of
        i: "extract hard negatives", the dissimilar rows of a neighbourhood.
    usable_positives: of the ordered pairs of one class, those with j among the K stored neighbours of i. The rest
        are the outliers that section 3.4 leaves out of P_k.
    anchors: of the rows, those with another row of their class in the batch, N_p / N of Eq. 3.5. The others get
        no gradient.
    """

    hard_negatives: float
    usable_positives: float
    anchors: float


class LocalNeighborhoodSampler(EpochSampler):
    """Local neighbourhood sampling (LNS), section 3.4 of the thesis on it: batches of centres with their neighbours.

    labels (N,) int, or (N, L), of which column 0 counts.
    neighbors (N, K) int: each row's nearest rows, nearest first, without itself. `set_neighbors` gives them later,
        and again whenever they are computed anew; it counts from the next `iter()` on, not in an epoch under way.
    num_neighbors: so many columns of the table count if it has more; None takes all. K = 16 in the thesis.

    A batch is a list of `batch_size` distinct rows in groups, filled by the thesis's five steps: take a random
    centre (2) whose K neighbours hold at least one row of its class and one of another (3), and neither it nor
    they are in the batch yet (4); add all K + 1 (5). The last group is cut to what the batch has room for, and the
    one before it if fewer than three rows would remain: the nearest stay, with the nearest row of the centre's
    class and of another in any case.

    Where no centre is left that meets the rules, they are widened as little as will do, in this order:
    (4) neighbours that the batch has already are left out, if of the others one is similar and one dissimilar;
    (3) what a centre's neighbours lack, similar or dissimilar, is a row drawn from the whole training split;
    at last, or for the one or two rows that no group fits, any rows are drawn. After each epoch in which this
    happened a warning counts how often.

    Epoch. `batches_per_epoch` batches, by default ceil(N / batch_size). Rows are tried as centres in the order of
    `default_rng((seed, epoch)).permutation(N)` without those that fail step 3, batch t from place
    t·ceil(batch_size / (K + 1)) on; what it draws besides is from `default_rng((seed, epoch, t))`. So hardly a row
    is centre twice in an epoch; but which rows are seen as neighbours, how often, and which not at all is up to the
    table. Batch t depends on labels, table, settings, seed, epoch and t only, and `groups(t)` gives its groups.

    There is no rank: under DDP every process makes the same batches, and the loader takes its share of each.

    Raises InputError for settings that the labels cannot meet, a table that does not fit them, or none when
    batches are asked for.
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
        check_whole("batch_size", batch_size, least=SMALLEST)
        check_whole("num_neighbors", 1 if num_neighbors is None else num_neighbors, least=1)
        check_whole("batches_per_epoch", 1 if batches_per_epoch is None else batches_per_epoch, least=1)
        check_whole("seed", seed, least=0)
        classes = np.unique(finest(labels), return_inverse=True)[1]
        if batch_size > len(classes):
            raise InputError(f"sampler.batch_size={batch_size}: the training split has only {len(classes)} images")
        super().__init__(batches_per_epoch or -(-len(classes) // batch_size))
        self.num_neighbors = num_neighbors
        self.wanted_neighbors = num_neighbors or 16
        self._classes = classes
        self._batch_size = batch_size
        self._seed = seed
        self._table: Neighborhoods | None = None
        if neighbors is not None:
            self.set_neighbors(neighbors)

    def set_neighbors(self, neighbors: ArrayLike) -> None:
        """The table (N, K) that batches are made of from the next `iter()` or `groups()` on; it is copied."""
        self._table = Neighborhoods.of(self._classes, neighbors, self.num_neighbors)

    def learn(self, embeddings: ArrayLike, neighbors: ArrayLike) -> None:  # noqa: ARG002
        """`set_neighbors`; see `LearnsFromEmbeddings`."""
        self.set_neighbors(neighbors)

    def groups(self, batch: int) -> list[Group]:
        """The groups of batch number `batch` of the epoch chosen, in its order; rows drawn by no rule are the last."""
        return self._plan().fill(batch).groups

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(self._plan())

    def _plan(self) -> "_Epoch":
        if self._table is None:
            raise InputError("sampler: local neighbourhoods need a table of neighbours, and none was set yet")
        order = np.random.default_rng((self._seed, self._epoch)).permutation(len(self._classes))
        return _Epoch(self._table, order, self._batch_size, (self._seed, self._epoch))

    def _batches(self, plan: "_Epoch") -> Iterator[list[int]]:
        made: Counter[str] = Counter()
        try:
            for number in range(len(self)):
                batch = plan.fill(number)
                made += batch.made
                yield [row for group in batch.groups for row in (group.centre, *group.members)]
        finally:  # also if the run ends within the epoch
            if made.keys() - {"whole"}:
                logger.warning(
                    "local neighbourhood sampling, epoch %d: the rules could not be met for every batch: of %d groups "
                    "%d left out neighbours that their batch had already and %d took a row from outside their "
                    "neighbourhood; %d rows were drawn at random",
                    plan.key[1],
                    made["whole"] + made["thinned"] + made["completed"],
                    made["thinned"],
                    made["completed"],
                    made["random"],
                )


def hard_shares(labels: ArrayLike, neighbors: ArrayLike, batch: ArrayLike) -> HardShares:
    """labels (N,) or (N, L), the stored table (N, K), a batch of rows (B,) -> its shares, for the log"""
    rows = np.asarray(batch)
    classes = finest(labels)[rows]
    similar = classes[:, None] == classes
    near = (np.asarray(neighbors)[rows][:, :, None] == rows).any(axis=1)
    apart = ~np.eye(len(rows), dtype=bool)
    return HardShares(
        hard_negatives=_share(near, ~similar),
        usable_positives=_share(near, similar & apart),
        anchors=float((similar & apart).any(axis=1).mean()),
    )


def _share(counted: Bools, among: Bools) -> float:
    return float(counted[among].mean()) if among.any() else float("nan")


@dataclass(frozen=True)
class _Epoch:
    """All that the batches of an epoch depend on."""

    table: Neighborhoods
    order: Ints  # a shuffle of all rows
    batch_size: int
    key: tuple[int, int]  # seed and epoch

    @cached_property
    def mixed(self) -> Ints:
        """`order` without the rows whose neighbourhoods do not pass step 3."""
        return self.order[self.table.mixed[self.order]]

    def fill(self, number: int) -> NeighborhoodBatch:
        batch = NeighborhoodBatch(self.table, self.batch_size, np.random.default_rng((*self.key, number)))
        start = number * -(-self.batch_size // self.table.groups.shape[1])
        batch.add_groups("whole", self.mixed, start, batch.is_whole)
        batch.add_groups("thinned", self.mixed, start, batch.is_mixed)
        batch.add_groups("completed", self.order, start, batch.can_be_completed)
        batch.add_random()
        return batch
