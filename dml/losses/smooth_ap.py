from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import in_blocks
from dml.ops.pairs import ALL, finest, list_columns, related
from dml.ops.precision import full_precision
from dml.runtime.errors import check_number


class SmoothAPLoss(Loss):
    r"""Smooth-AP (Brown et al., 2020), Eq. 4-6.

    Each embedding in turn is the query. P are the items of the query's class, with the query itself as in the
    release, and s_i is the cosine of the query and item i::

        rank(i, S) = 1 + sum_{j in S, j != i} sigmoid((s_j - s_i) / temperature)
        L = mean over queries of 1 - 1/|P| sum_{i in P} rank(i, P) / rank(i, all)

    The embeddings are L2-normalized here.

    Departures: classes may have different numbers of images. A query whose only positive is itself adds 0; the paper
    has no such query. The SmoothAPLoss of pytorch-metric-learning 2.9 isn't used, because it is right only if there
    are as many classes as images of each class.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(SmoothAPLoss(temperature=0.1)(embeddings, torch.tensor([0, 1, 0, 1])).item(), 3)
    0.309

    Args:
        temperature: divisor of the differences of cosines in the sigmoid.
    """

    needs_positives: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = True

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__()
        check_number("loss.temperature", temperature, above=0)
        self.temperature = temperature

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar.

        The mean is over the rows ``queries``, each of which is compared with the whole batch.
        """
        unit, classes = F.normalize(embeddings, dim=1), finest(labels)
        largest = int(related(classes, classes).sum(dim=1).max())

        def compute(block: slice) -> tuple[Tensor]:
            similarities = unit[block] @ unit.T
            same = related(classes[block], classes)
            # Only items of the query's class are ranked, as padded columns: (Q, P, B) gaps instead of (Q, B, B).
            items, inside = list_columns(same)
            gaps = similarities[:, None, :] - similarities.gather(1, items)[:, :, None]
            before = torch.sigmoid(gaps / self.temperature)
            # The sums include the item itself, which counts sigmoid(0) = 1/2; with 0.5 that is the 1 of the formula.
            rank = 0.5 + before.sum(dim=2)
            rank_of_positives = 0.5 + (before * same[:, None, :]).sum(dim=2)
            count = same.sum(dim=1)
            precision = (inside * rank_of_positives / rank).sum(dim=1) / count
            return ((1.0 - precision) * (count > 1),)

        rows = range(*queries.indices(len(unit)))
        return in_blocks(compute, rows, largest * len(unit), unit.device)[0].mean()
