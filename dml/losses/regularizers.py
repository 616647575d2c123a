from typing import ClassVar

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError


def embedding_norm(embeddings: Tensor) -> Tensor:
    """Eq. 3.7 of the thesis on local neighborhood sampling: mean Euclidean norm. embeddings (B, D) -> scalar.

    The gradient at an embedding of 0 is 0.
    """
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(embeddings.to(wide), dim=1)
    return norms.mean()


def embedding_drift(embeddings: Tensor, stored: Tensor) -> Tensor:
    """Eq. 3.6: mean Euclidean distance from the same images' earlier embeddings. (B, D), (B, D) -> scalar."""
    if embeddings.shape != stored.shape:
        raise InputError(f"stored embeddings: {tuple(stored.shape)}, current embeddings: {tuple(embeddings.shape)}")
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    return embedding_norm(embeddings.to(wide) - stored.detach().to(wide))


class EmbeddingNorm(nn.Module):
    """`embedding_norm` as a term of a `WeightedSum`; the thesis weights it with gamma = 0.02 (3.6.3)."""

    def __init__(self) -> None:  # without it the signature is nn.Module's *args, **kwargs
        super().__init__()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """embeddings (B, D), labels of any shape, unused -> scalar."""
        return embedding_norm(embeddings)


class EmbeddingDrift(nn.Module):
    """`embedding_drift` as a term of a `WeightedSum`; the thesis weights it with lambda = 0.3 (3.6.3).

    The stored embeddings are those of the local neighborhood sampler. Whoever makes them sets ``stored`` (N, D), on
    any device, a row an image of the training table, again on resuming: they are no part of the checkpoint here.
    Before that, while the sampler has none either, the term is 0.
    """

    needs_indices: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.stored = torch.empty(0, 0)  # no buffer: DistributedDataParallel would send it to every process each step

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """embeddings (B, D), labels of any shape, unused, rows (B,) of ``stored`` -> scalar.

        Raises:
            InputError: if there are stored embeddings but no indices.
        """
        if len(self.stored) == 0:
            return 0.0 * embedding_norm(embeddings)
        if indices is None:
            raise InputError(f"drift from {len(self.stored)} stored embeddings: needs the batch's row indices")
        return embedding_drift(embeddings, self.stored[indices.to(self.stored.device)].to(embeddings.device))
