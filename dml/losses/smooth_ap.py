from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import in_blocks
from dml.ops.pairs import ALL, finest, list_columns
from dml.ops.relevance import level_counts, shared_levels
from dml.runtime.errors import check_number


class SmoothAPLoss(Loss):
    r"""Smooth-AP (Brown et al., 2020), Eq. 4-6.

    Each embedding in turn is the query. P are the items of the query's class, with the query itself as in the
    release, and s_i is the cosine of the query and item i::

        rank(i, S) = 1 + sum_{j in S, j != i} sigmoid((s_j - s_i) / temperature)
        L = mean over queries of 1 - 1/|P| sum_{i in P} rank(i, P) / rank(i, all)

    With a ``relevance``, it is 1 - H-AP with the same sigmoid in both ranks, the first row of Table 5 of HAPPIER (Ramzi
    et al., 2022). P are then the items that share a level with the query, and Hrank(i) / sum rel takes the place of
    ``rank(i, P) / |P|``::

        Hrank(i) = rel(i) + sum_{j in P, j != i} min(rel(j), rel(i)) sigmoid((s_j - s_i) / temperature)

    The embeddings are L2-normalized here.

    Departures: classes may have different numbers of images. A query whose only positive is itself adds 0; the paper
    has no such query. The SmoothAPLoss of pytorch-metric-learning 2.9 isn't used, because it is right only if there
    are as many classes as images of each class.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(SmoothAPLoss(temperature=0.1)(embeddings, torch.tensor([0, 1, 0, 1])).item(), 3)
    0.309

    Args:
        relevance: function from the number of items at each level (Q, L + 1) to the relevance of an item at each level
            (Q, L + 1), such as ``dml.ops.relevance.power_relevance``. None compares the finest classes alone.
    """

    needs_positives: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = True

    def __init__(self, temperature: float = 0.01, relevance: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        check_number("loss.temperature", temperature, above=0)
        self.temperature = temperature
        self.relevance = relevance

    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the mean loss of the rows ``queries`` of embeddings (B, D), each compared with the whole batch."""
        unit = F.normalize(embeddings, dim=1)
        largest = int((self._relevances(labels, ALL, unit.dtype) > 0).sum(dim=1).max())

        def compute(block: slice) -> tuple[Tensor]:
            similarities, relevances = unit[block] @ unit.T, self._relevances(labels, block, unit.dtype)
            # Only positives are ranked, as padded columns: (Q, P, B) gaps instead of (Q, B, B).
            items, inside = list_columns(relevances > 0)
            gaps = similarities[:, None, :] - similarities.gather(1, items)[:, :, None]
            before = torch.sigmoid(gaps / self.temperature)
            # The sums include the item itself, which counts sigmoid(0) = 1/2; with 0.5 that is the 1 of the formula.
            rank = 0.5 + before.sum(dim=2)
            own, shared = relevances.gather(1, items), relevances[:, None, :]
            if self.relevance is not None:  # else those of the positives are 1
                shared = shared.minimum(own[:, :, None])
            h_rank = 0.5 * own + (before * shared).sum(dim=2)
            precision = (inside * h_rank / rank).sum(dim=1) / relevances.sum(dim=1)
            return ((1.0 - precision) * ((relevances > 0).sum(dim=1) > 1),)

        rows = range(*queries.indices(len(unit)))
        return in_blocks(compute, rows, largest * len(unit), unit.device)[0].mean()

    def _relevances(self, labels: Tensor, queries: slice, dtype: torch.dtype) -> Tensor:
        """Compute the relevance (Q, B) of each item of a batch with labels (B,) or (B, L) to some queries."""
        if self.relevance is None:
            return (finest(labels)[queries, None] == finest(labels)).to(dtype)
        columns = labels[:, None] if labels.ndim == 1 else labels
        levels = shared_levels(columns[queries], columns)
        return self.relevance(level_counts(levels, columns.shape[1]).to(dtype)).gather(1, levels)
