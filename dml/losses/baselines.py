"""The losses of pytorch-metric-learning as losses of this project; the only place that imports it."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pytorch_metric_learning.distances import CosineSimilarity  # type: ignore[import-untyped]
from pytorch_metric_learning.losses import CrossBatchMemory  # type: ignore[import-untyped]
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices  # type: ignore[import-untyped]
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.pairs import finest
from dml.ops.precision import full_precision


class PairLoss(nn.Module):
    """A loss of pytorch-metric-learning that compares embeddings with each other.

    Departures: a batch without a positive pair has nothing to compare and is worth 0; some of the library's
    losses still push its negatives apart.

    Args:
        loss: the library's loss.
        miner: the library's miner, which chooses its pairs or triplets; None takes them all.
        normalize: whether the embeddings are L2-normalised, here and before all else; the library's distances do
            so for themselves, but some of its losses use embeddings beside them.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, loss: nn.Module, miner: nn.Module | None, normalize: bool) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner
        self.normalize = normalize

    @property
    def takes_gallery(self) -> bool:
        """Whether the library's loss compares a batch with other embeddings too."""
        return type(self.loss).__name__ in CrossBatchMemory.supported_losses()

    @full_precision
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        gallery: Tensor | None = None,
        gallery_labels: Tensor | None = None,
    ) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar.

        Args:
            embeddings: the anchors; each is compared with all others.
            labels: theirs.
            gallery: (M, D), embeddings that the anchors are compared with besides each other.
            gallery_labels: (M,) or (M, L).

        Raises:
            InputError: if the library's loss takes no gallery.
        """
        rows, classes = self._placed(embeddings), finest(labels)
        columns, column_classes = rows, classes
        if gallery is not None and gallery_labels is not None:
            if not self.takes_gallery:
                raise InputError(f"{type(self.loss).__name__}: compares a batch with itself alone, not with a memory")
            columns = torch.cat([rows, self._placed(gallery.to(rows))])
            column_classes = torch.cat([classes, finest(gallery_labels)])
        # the parameters too: distributed training waits for a gradient of each
        nothing = 0.0 * (embeddings.sum() + sum(parameter.sum() for parameter in self.parameters()))
        if (classes[:, None] == column_classes).sum() == len(rows):  # each row with itself
            return nothing
        pairs = self._pairs(rows, classes, columns, column_classes)
        value: Tensor = self.loss(rows, classes, pairs, columns, column_classes)
        return value + nothing

    def _placed(self, embeddings: Tensor) -> Tensor:
        return F.normalize(embeddings, dim=1) if self.normalize else embeddings

    def _pairs(self, rows: Tensor, classes: Tensor, columns: Tensor, column_classes: Tensor) -> Any:
        """The library's tuple of three (triplets) or four (pairs) vectors of indices; None: all."""
        if self.miner is not None:
            anchors, positives, *negatives = self.miner(rows, classes, columns, column_classes)
        elif columns is not rows:
            anchors, positives, *negatives = get_all_pairs_indices(classes, column_classes)
        else:
            return None
        others = anchors != positives  # the first columns are the rows themselves
        if len(negatives) == 1:
            negatives = [negatives[0][others]]
        return anchors[others], positives[others], *negatives


class ProxyLoss(nn.Module):
    """A loss of pytorch-metric-learning that compares embeddings with learned proxies of the classes.

    It computes in the precision of its proxies; the library would convert them to that of the embeddings, behind
    the optimizer's back.

    Args:
        loss: makes the library's loss from ``num_classes`` and ``embedding_size``; its distance L2-normalises.
        num_classes: C.
        embedding_dim: D.
    """

    needs_positives: ClassVar[bool] = False

    def __init__(self, loss: Callable[..., nn.Module], num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.loss = loss(num_classes=num_classes, embedding_size=embedding_dim)

    @property
    def proxies(self) -> Tensor | None:
        """(C, D), the library's own, one a class; None if a class has several."""
        if isinstance(weights := getattr(self.loss, "W", None), Tensor):
            return weights.T
        proxies: Tensor | None = getattr(self.loss, "proxies", None)
        return proxies

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        proxies = next(self.loss.parameters())
        value: Tensor = self.loss(embeddings.to(proxies.dtype), finest(labels))
        return value


class OpenCosineSimilarity(CosineSimilarity):  # type: ignore[misc]
    """Cosines strictly between -1 and 1: at its ends the arc cosine of ArcFace has an infinite slope."""

    def __init__(self) -> None:
        super().__init__()

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """(B, D), (C, D), L2-normalised -> (B, C)."""
        cosines: Tensor = super().compute_mat(query_emb, ref_emb)
        end = 1.0 - 4 * torch.finfo(cosines.dtype).eps
        return cosines.clamp(-end, end)
