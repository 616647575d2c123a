from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.precision import full_precision
from dml.ops.reductions import masked_logsumexp


class CSLLoss(nn.Module):
    r"""Cross-Scale Learning (Sun et al., 2021, Dynamic Metric Learning) as the HAPPIER paper compares with it.

    Each finest class has a proxy; s_ic are cosines of embedding i and proxy c, and y_i is the embedding's class::

        L = sum_l mean_i softplus(log sum_{c differs from y_i at level l} exp(scale (s_ic - s_iy + margin_l)))

    Every level pulls towards the proxy of the finest class and pushes from those that differ at that level, by a
    larger margin the coarser it is.

    The coarser labels of a proxy are those of the images of its class: `hierarchy` (C, L) keeps them as the
    batches show them, -1 before that, and a class counts from then on. (The released code reads them off the
    training set; here that takes one epoch, or a call of `learn` with the training labels.) Every process of a
    distributed training sees the labels of all, so all keep the same hierarchy, and it is in the checkpoint.

    Args:
        num_classes: C, of the finest level.
        embedding_dim: D.
        margins: one a level, the finest first; None spaces them evenly from 0.25 to 0.45, which are the paper's for
            two and for three levels.
        scale: factor of the cosines.
    """

    hierarchy: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        margins: Sequence[float] | None = None,
        scale: float = 32.0,
    ) -> None:
        super().__init__()
        self.margins = None if margins is None else tuple(margins)
        self.scale = scale
        bound = embedding_dim**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))
        self.register_buffer("hierarchy", torch.full((num_classes, 0), -1))

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar.

        Raises:
            InputError: if there isn't a margin for each level.
        """
        levels = labels.unsqueeze(1) if labels.ndim == 1 else labels
        self.learn(levels)
        cosines = F.normalize(embeddings, dim=1) @ F.normalize(self.proxies, dim=1).T
        own = cosines.gather(1, levels[:, :1])
        seen = self.hierarchy[:, 0] >= 0
        total = cosines.new_zeros(())
        for level, margin in enumerate(self._margins(levels.shape[1])):
            differs = (self.hierarchy[:, level] != levels[:, level, None]) & seen
            violations = masked_logsumexp(self.scale * (cosines - own + margin), differs)
            total = total + F.softplus(violations).mean()
        return total

    @torch.no_grad()
    def learn(self, labels: Tensor) -> None:
        """Notes the coarser labels of the classes in labels (N, L)."""
        if self.hierarchy.shape[1] != labels.shape[1]:
            self.hierarchy = self.hierarchy.new_full((len(self.hierarchy), labels.shape[1]), -1)
        self.hierarchy[labels[:, 0]] = labels

    def _margins(self, levels: int) -> tuple[float, ...]:
        if self.margins is None:
            return tuple(torch.linspace(0.25, 0.45, levels, dtype=torch.float64).tolist())
        if len(self.margins) != levels:
            raise InputError(f"loss.margins={list(self.margins)}: the data set's labels have {levels} levels")
        return self.margins

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes on the stored hierarchy's number of levels, which isn't known before the first batch."""
        stored = state_dict.get(f"{prefix}hierarchy")
        if stored is not None and len(stored) == len(self.hierarchy):
            self.hierarchy = torch.empty_like(stored, device=self.hierarchy.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
