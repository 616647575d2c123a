from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.pairs import masked_logsumexp, softplus
from dml.runtime.errors import InputError, check_number


class CSLLoss(Loss):
    r"""Cross-Scale Learning (Sun et al., 2021, Dynamic Metric Learning) in the variant that HAPPIER compares with.

    Each finest class has a proxy. s_ic is the cosine of embedding i and proxy c, and y_i the class of embedding i::

        L = sum_l mean_i softplus(log sum_{c differs from y_i at level l} exp(scale (s_ic - s_iy + margin_l)))

    Every level pulls an embedding toward the proxy of its finest class and pushes it away from the proxies that
    differ from it at that level. The coarser the level, the larger the margin.

    The coarser labels of each proxy are kept in `hierarchy` (C, L). They are read from the labels of the batches: a
    class that no batch has shown yet has -1 there and takes no part. The released code reads them from the training
    set; here, `set_hierarchy` with the training labels does the same. In distributed training every process sees the
    labels of all processes, so the hierarchies stay equal. The hierarchy is saved in the checkpoint.

    >>> loss = CSLLoss(num_classes=3, embedding_dim=2)
    >>> loss.set_hierarchy(torch.tensor([[0, 0], [1, 0], [2, 1]]))
    >>> loss(torch.eye(2), torch.tensor([[0, 0], [2, 1]])).shape
    torch.Size([])

    Args:
        margins: margin of each level, the finest first; None spaces them evenly from 0.25 to 0.45, which gives the
            paper's margins for two and for three levels.
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
        for margin in margins or ():
            check_number("loss.margins", margin, least=0)
        check_number("loss.scale", scale, above=0)
        self.margins = None if margins is None else tuple(margins)
        self.scale, self.num_classes = scale, num_classes
        bound = embedding_dim**-0.5
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))
        self.register_buffer("hierarchy", torch.full((num_classes, 0), -1))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        levels = (labels.unsqueeze(1) if labels.ndim == 1 else labels).long()
        self.set_hierarchy(levels)
        cosines = F.normalize(embeddings, dim=1) @ F.normalize(self.proxies.to(embeddings.dtype), dim=1).T
        class_cosines = cosines.gather(1, levels[:, :1])
        seen = self.hierarchy[:, 0] >= 0
        total = cosines.new_zeros(())
        for level, margin in enumerate(self._margins(levels.shape[1])):
            differs = (self.hierarchy[:, level] != levels[:, level, None]) & seen
            violations = masked_logsumexp(self.scale * (cosines - class_cosines + margin), differs)
            total = total + softplus(violations).mean()
        return total

    @torch.inference_mode(False)  # a buffer that is made in inference mode can't be changed in training
    @torch.no_grad()
    def set_hierarchy(self, labels: Tensor) -> None:
        """Set the coarser labels of the classes that occur in labels (N, L); see `UsesHierarchy`."""
        labels = labels.long()
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
        """Load the hierarchy with the number of levels of the checkpoint: before the first batch it is unknown."""
        hierarchy_in_checkpoint = state_dict.get(f"{prefix}hierarchy")
        if hierarchy_in_checkpoint is not None and len(hierarchy_in_checkpoint) == len(self.hierarchy):
            self.hierarchy = torch.empty_like(hierarchy_in_checkpoint, device=self.hierarchy.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
