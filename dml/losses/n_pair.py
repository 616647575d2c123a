from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest, masked_logsumexp, pair_masks, softplus
from dml.runtime.errors import check_choice, check_number

Form = Literal["symmetric", "published"]


class NPairLoss(Loss):
    r"""Multi-class N-pair loss (Sohn, 2016), Eq. 5 and its L2 regularization.

    s_ij = f_i . f_j is a dot product, and N_i are the negatives that anchor i is compared with. Each of the P positive
    pairs (i, j) gives a cross entropy, in which j has to be told from N_i::

        L = 1/P sum_{(i, j)} -log(exp(s_ij) / (exp(s_ij) + sum_{k in N_i} exp(s_ik))) + norm_weight mean_i |f_i|^2

    - "symmetric": the pairs are all ordered positive pairs of the batch, and N_i all images of other classes;
    - "published": the anchors are the first image of each class in the batch, j is the second image of that class,
      and N_i are the second images of the other classes. This is ``npairs_loss`` of TensorFlow contrib; it depends on
      the order of the batch.

    The embeddings are not L2-normalized here. A batch without positive pairs gives 0.

    Departure: Sohn's loss is the "published" form; the default form, "symmetric", treats all images alike.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(NPairLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.486

    Args:
        form: "symmetric" or "published".
        norm_weight: factor of the mean squared norm; half of TensorFlow's ``reg_lambda``, which is 0.002.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, form: Form = "symmetric", norm_weight: float = 1e-3) -> None:
        super().__init__()
        check_choice("loss.form", form, get_args(Form))
        self.form = form
        check_number("loss.norm_weight", norm_weight, least=0)
        self.norm_weight = norm_weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        positives, negatives = pair_masks(finest(labels))
        if not positives.any():
            return 0.0 * embeddings.sum()
        if self.form == "published":
            anchor_indices, positive_indices = _select_first_two(positives)
            logits = embeddings[anchor_indices] @ embeddings[positive_indices].T
            value = F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
            embeddings = embeddings[torch.cat([anchor_indices, positive_indices])]
        else:
            similarities = embeddings @ embeddings.T
            gaps = masked_logsumexp(similarities, negatives)[:, None] - similarities
            value = softplus(gaps[positives]).mean()
        return value + self.norm_weight * embeddings.square().sum(dim=1).mean()


def _select_first_two(positives: Tensor) -> tuple[Tensor, Tensor]:
    """Select the first two rows of each class with at least two. (B, B) bool -> row indices (N,), (N,)"""
    is_first = positives.any(dim=1) & ~positives.tril().any(dim=1)
    anchor_indices = is_first.nonzero()[:, 0]
    return anchor_indices, positives[anchor_indices].to(torch.uint8).argmax(dim=1)
