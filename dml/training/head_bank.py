from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dml.evaluation.geometry import ranking_device
from dml.models.recurrent import AnyModel
from dml.ops.training_protocols import EmbeddingBank
from dml.retrieval.search import nearest_neighbors


@dataclass(frozen=True)
class HeadBank:
    """The embedding bank of all heads: embeddings of all images of a split, and their neighbors, on the CPU.

    It is Z of section 3.4, step 1, of the thesis on local neighborhood sampling.

    Args:
        embeddings: embeddings (N, D) of each head by its name, as the losses see them.
        neighbors: (N, K) indices of each image's nearest other images by the embeddings of all heads, nearest first.
    """

    embeddings: dict[str, Tensor]
    neighbors: Tensor

    @property
    def num_images(self) -> int:
        """The number of images of the split."""
        return len(self.neighbors)

    def for_head(self, head: str) -> EmbeddingBank:
        """Return the bank that the loss of a head gets."""
        return EmbeddingBank(self.embeddings[head], self.neighbors, self.embeddings)

    def for_all_heads(self, model: AnyModel) -> EmbeddingBank:
        """Return the bank that samplers and models get."""
        return EmbeddingBank(model.concatenate(self.embeddings), self.neighbors, self.embeddings)

    def neighbor_embeddings(self, rows: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Look up the neighbors' embeddings (B, K, D) by each head for rows (B,) of the split, on the device."""
        neighbors = self.neighbors[rows.cpu()]
        return {head: embeddings[neighbors].to(device) for head, embeddings in self.embeddings.items()}


def find_neighbors(model: AnyModel, embeddings: Mapping[str, Tensor], k: int) -> HeadBank:
    """Find the k nearest neighbors of each image of a split, or all other images if there are fewer.

    Args:
        model: model that made the embeddings; it concatenates them for the search.
        embeddings: embeddings (N, D) of each head by its name.
        k: number of neighbors; 0 searches none.
    """
    if not k:
        return HeadBank(dict(embeddings), torch.empty(len(next(iter(embeddings.values()))), 0).long())
    device = ranking_device(next(model.parameters()).device)
    return HeadBank(dict(embeddings), nearest_neighbors(model.concatenate(embeddings).to(device), k)[1])
