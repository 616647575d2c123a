from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dml.evaluation.items import ranking_device
from dml.retrieval.search import nearest_neighbors
from dml.training.embedding import AnyModel


@dataclass(frozen=True)
class Stored:
    """Embeddings of a whole split (Z of section 3.4, step 1, of the thesis) and its rows' neighbours, on CPU.

    Args:
        embeddings: of each head, as its loss sees them (N, D).
        neighbors: (N, K) each row's nearest other rows by the test embeddings of all heads, nearest first; K = 0 if
            none were asked for.
    """

    embeddings: dict[str, Tensor]
    neighbors: Tensor

    @classmethod
    def of(cls, model: AnyModel, embeddings: Mapping[str, Tensor], k: int) -> "Stored":
        """The heads' embeddings (N, D) of a split -> with the k nearest of each row, all others if there are fewer."""
        if not k:
            return cls(dict(embeddings), torch.empty(len(next(iter(embeddings.values()))), 0).long())
        device = ranking_device(next(model.parameters()).device)
        return cls(dict(embeddings), nearest_neighbors(model.concatenate(embeddings).to(device), k)[1])

    def around(self, rows: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Rows (B,) of the split -> for each head their neighbours' embeddings (B, K, D), on the device."""
        neighbors = self.neighbors[rows.cpu()]
        return {head: own[neighbors].to(device) for head, own in self.embeddings.items()}
