"""Adapters that give the losses of pytorch-metric-learning the interface of this project's losses.

No other module imports that library. Of some losses it computes another form than the equations of the papers.

P and N are the positive and negative pairs of a batch, in both orders, and T its triplets (i, j, k) with (i, j) in P
and (i, k) in N. D_ij is the distance of the library's loss, f_i are the embeddings, and m and alpha the library's
``neg_margin`` and ``alpha``::

    ContrastiveLoss      nra_eq_1        mean over P of D_ij^2 and over N of max(0, m - D_ij)^2, over both together
    LiftedStructureLoss  rll_eq_3        1/(2|P|) sum_P max(0, D_ij + log(sum_N exp(m - D_ik) + sum_N exp(m - D_jl)))
    AngularLoss          thesis_eq_2_23  1/|T| sum_T max(0, |f_i - f_j|^2 - 4 tan^2(alpha) |f_k - (f_i + f_j) / 2|^2)

The library's contrastive loss doesn't square the distances, and divides by the pairs that give more than 0. Its lifted
loss squares each term, as NRA's Eq. 3 and the thesis's Eq. 2.17 do. Its angular loss has log(1 + sum exp) over the
negatives. An equation has its own mean, so the library's ``reducer`` and ``pos_margin`` aren't used.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pytorch_metric_learning.distances import CosineSimilarity  # type: ignore[import-untyped]
from pytorch_metric_learning.losses import CrossBatchMemory  # type: ignore[import-untyped]
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices  # type: ignore[import-untyped]
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest, masked_logsumexp, pair_masks
from dml.runtime.errors import InputError, check_choice

Equation = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
"""A function of a loss of the library, embeddings (B, D), and masks (B, B) of positive and negative pairs -> scalar."""


def _contrastive(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    distances: Tensor = loss.distance(embeddings)
    gaps = torch.where(positives, distances, (loss.neg_margin - distances).clamp(min=0))
    return gaps[positives | negatives].square().mean()


def _lifted(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    distances: Tensor = loss.distance(embeddings)
    pushed = masked_logsumexp(loss.neg_margin - distances, negatives)
    pushed = pushed.clamp(min=torch.finfo(pushed.dtype).min / 4)  # two rows of -inf would have a gradient of NaN
    gaps = distances + torch.logaddexp(pushed[:, None], pushed[None, :])
    return gaps[positives].clamp(min=0).mean() / 2


def _angular(loss: Any, embeddings: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    first, second = positives.triu().nonzero(as_tuple=True)  # both orders of a pair have the same center
    centers = (embeddings[first] + embeddings[second]) / 2
    pulled = (embeddings[first] - embeddings[second]).square().sum(dim=1)
    products = centers @ embeddings.T
    pushed = centers.square().sum(dim=1)[:, None] - 2 * products + embeddings.square().sum(dim=1)
    slope: Tensor = 4 * loss.alpha.tan() ** 2
    gaps = (pulled[:, None] - slope * pushed).clamp(min=0)
    return (gaps * negatives[first]).sum() / negatives[first].sum().clamp(min=1)


EQUATIONS: dict[str, dict[str, Equation]] = {
    "ContrastiveLoss": {"nra_eq_1": _contrastive},
    "LiftedStructureLoss": {"rll_eq_3": _lifted},
    "AngularLoss": {"thesis_eq_2_23": _angular},
}
"""The equations of each loss of pytorch-metric-learning, by the name of its class."""


class PairLoss(Loss):
    """A loss of pytorch-metric-learning that compares embeddings with each other.

    Departure: a batch without a positive pair gives 0; some of the library's losses push its negatives apart.

    >>> from pytorch_metric_learning.losses import ContrastiveLoss
    >>> loss = PairLoss(ContrastiveLoss(pos_margin=0.0, neg_margin=1.0), miner=None, normalize=True)
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1])).item(), 3)
    0.738

    Args:
        miner: a miner of pytorch-metric-learning, which chooses the pairs or triplets; None takes all of them.
        normalize: whether to L2-normalize the embeddings before the miner and the loss see them. The library's
            distances normalize embeddings in any case, but some of its losses also use them directly.
        form: a paper's equation in place of the library's form, see `dml.losses.baselines`; None for the library's.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, loss: Any, miner: nn.Module | None, normalize: bool, form: str | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner
        self.normalize = normalize
        self.form = form
        check_choice("loss.form", form, [None, *self._equations])
        if form is not None and (miner is not None or loss.distance.is_inverted):
            raise InputError(f"loss.form={form}: takes the distances of all pairs; needs miner=null and LpDistance")

    @property
    def _equations(self) -> dict[str, Equation]:
        return EQUATIONS.get(type(self.loss).__name__, {})

    @property
    def takes_gallery(self) -> bool:
        """Tell whether the loss can compare a batch with embeddings from outside the batch."""
        return self.form is None and type(self.loss).__name__ in CrossBatchMemory.supported_losses()

    @property
    def num_classes(self) -> int | None:  # type: ignore[override]
        """Return the number of the margin loss's boundaries, if it has one of each class."""
        boundaries = getattr(self.loss, "beta", None)
        return len(boundaries) if isinstance(boundaries, Tensor) and len(boundaries) > 1 else None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        gallery: Tensor | None = None,
        gallery_labels: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of embeddings (B, D), each compared with all others and with a gallery (M, D), if any."""
        anchors, classes = self._prepare(embeddings), finest(labels)
        references, reference_classes = anchors, classes
        if gallery is not None and gallery_labels is not None:
            if not self.takes_gallery:
                raise InputError(f"{type(self.loss).__name__}: compares a batch with itself alone, not with a memory")
            references = torch.cat([anchors, self._prepare(gallery.to(anchors))])
            reference_classes = torch.cat([classes, finest(gallery_labels)])
        zero = 0.0 * embeddings.sum()  # some of the library's losses give a constant, which has no gradient
        if (classes[:, None] == reference_classes).sum() == len(anchors):  # only each anchor with itself
            return zero
        if self.form is not None:
            return self._equations[self.form](self.loss, anchors, *pair_masks(classes)) + zero
        pairs = self._choose_pairs(anchors, classes, references, reference_classes)
        value: Tensor = self.loss(anchors, classes, pairs, references, reference_classes)
        return value + zero

    def _prepare(self, embeddings: Tensor) -> Tensor:
        return F.normalize(embeddings, dim=1) if self.normalize else embeddings

    def _choose_pairs(self, anchors: Tensor, classes: Tensor, references: Tensor, reference_classes: Tensor) -> Any:
        """Return three (triplets) or four (pairs) vectors of indices, as the library has them; None means all."""
        if self.miner is not None:
            anchor_indices, positives, *negatives = self.miner(anchors, classes, references, reference_classes)
        elif references is not anchors:
            anchor_indices, positives, *negatives = get_all_pairs_indices(classes, reference_classes)
        else:
            return None
        differs = anchor_indices != positives  # the first references are the anchors themselves
        if len(negatives) == 1:
            negatives = [negatives[0][differs]]
        return anchor_indices[differs], positives[differs], *negatives


class ProxyLoss(Loss):
    """A loss of pytorch-metric-learning that compares embeddings with learned proxies of the C classes.

    The loss is computed in the precision of the proxies. Otherwise the library would replace the proxies by copies
    in the precision of the embeddings, which the optimizer doesn't know. ``loss`` makes the library's loss from
    ``num_classes`` and ``embedding_size``; it L2-normalizes embeddings and proxies.

    >>> from pytorch_metric_learning.losses import ProxyAnchorLoss
    >>> ProxyLoss(ProxyAnchorLoss, num_classes=3, embedding_dim=2).proxies.shape
    torch.Size([3, 2])
    """

    num_classes: int

    def __init__(self, loss: Callable[..., nn.Module], num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.loss = loss(num_classes=num_classes, embedding_size=embedding_dim)
        self.num_classes = num_classes

    @property
    def proxies(self) -> Tensor | None:
        """Return the library's proxies (C, D), or (C, K, D) if it has K of each class."""
        for name in ("W", "fc"):  # (D, C K), all of one class side by side
            if isinstance(weights := getattr(self.loss, name, None), Tensor):
                return weights.T.view(self.num_classes, -1, len(weights)).squeeze(1)
        proxies: Tensor | None = getattr(self.loss, "proxies", None)
        return proxies

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        proxies = next(self.loss.parameters())
        value: Tensor = self.loss(embeddings.to(proxies.dtype), finest(labels))
        return value


class OpenCosineSimilarity(CosineSimilarity):  # type: ignore[misc]
    """Keeps cosines strictly between -1 and 1, where the slope of ArcFace's arc cosine is finite.

    >>> bool(OpenCosineSimilarity()(torch.eye(2)).max() < 1)
    True
    """

    def __init__(self) -> None:
        super().__init__()

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Compute cosines of L2-normalized embeddings (B, D) and proxies (C, D) -> (B, C)."""
        cosines: Tensor = super().compute_mat(query_emb, ref_emb)
        largest = 1.0 - 4 * torch.finfo(cosines.dtype).eps
        return cosines.clamp(-largest, largest)
