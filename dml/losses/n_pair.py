from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.pairs import finest, pair_masks
from dml.ops.precision import full_precision
from dml.ops.reductions import masked_logsumexp

Form = Literal["symmetric", "published"]


class NPairLoss(nn.Module):
    r"""Multi-class N-pair loss (Sohn, 2016), Eq. 5 and its L2 regularisation.

    With s_ij = f_i . f_j and N_i the negatives that anchor i is compared with, each positive pair (i, j) is a cross
    entropy: which of these embeddings is the positive::

        L = 1/P sum_{(i, j)} -log(exp(s_ij) / (exp(s_ij) + sum_{k in N_i} exp(s_ik))) + norm_weight mean_i |f_i|^2

    - "symmetric": every ordered positive pair of the batch, against all images of other classes;
    - "published": the first image of each class in the batch is an anchor and the second its positive; N_i are the
      positives of the other classes. That is TensorFlow contrib's ``npairs_loss``, and depends on the rows' order.

    The embeddings are not L2-normalised here. A batch without positive pairs is worth 0.

    Departures: Sohn's loss is the "published" form; the default treats all rows alike.

    Args:
        form: "symmetric" or "published".
        norm_weight: factor of the mean squared norm; half of ``reg_lambda`` of TensorFlow, which is 0.002.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, form: Form = "symmetric", norm_weight: float = 1e-3) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise InputError(f"loss.form={form}: one of {', '.join(get_args(Form))}")
        self.form = form
        self.norm_weight = norm_weight

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        positives, negatives = pair_masks(finest(labels))
        if not positives.any():
            return 0.0 * embeddings.sum()
        if self.form == "published":
            anchor_indices, positive_indices = _first_two(positives)
            logits = embeddings[anchor_indices] @ embeddings[positive_indices].T
            value = F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
            embeddings = embeddings[torch.cat([anchor_indices, positive_indices])]
        else:
            similarities = embeddings @ embeddings.T
            gaps = masked_logsumexp(similarities, negatives)[:, None] - similarities
            value = F.softplus(gaps[positives]).mean()
        return value + self.norm_weight * embeddings.square().sum(dim=1).mean()


def _first_two(positives: Tensor) -> tuple[Tensor, Tensor]:
    """The first two rows of each class that has as many. positives (B, B) bool -> two (N,) of row indices"""
    is_first = positives.any(dim=1) & ~positives.tril().any(dim=1)
    anchor_indices = is_first.nonzero()[:, 0]
    return anchor_indices, positives[anchor_indices].to(torch.uint8).argmax(dim=1)
