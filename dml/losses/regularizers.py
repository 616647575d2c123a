from typing import ClassVar

import torch
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError


def embedding_norm(embeddings: Tensor) -> Tensor:
    """Compute the mean Euclidean norm of embeddings (B, D) -> scalar.

    This is Eq. 3.7 of the thesis on local neighborhood sampling. The gradient at an embedding of 0 is 0.

    >>> embedding_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
    3.0
    """
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(embeddings.to(wide), dim=1)
    return norms.mean()


def embedding_drift(embeddings: Tensor, stored: Tensor) -> Tensor:
    """Compute the mean Euclidean distance of images' embeddings from their stored ones. (B, D), (B, D) -> scalar

    This is Eq. 3.6 of the thesis on local neighborhood sampling. The stored embeddings get no gradient.

    >>> embedding_drift(torch.tensor([[3.0, 4.0]]), stored=torch.tensor([[3.0, 2.0]])).item()
    2.0
    """
    if embeddings.shape != stored.shape:
        raise InputError(
            f"stored embeddings: {tuple(stored.shape)}, current embeddings: {tuple(embeddings.shape)}; "
            "their shapes must be equal"
        )
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    return embedding_norm(embeddings.to(wide) - stored.detach().to(wide))


class EmbeddingNorm(Loss):
    """The loss `embedding_norm`, to be a term of a `WeightedSum`; the thesis sets its weight to 0.02 (3.6.3).

    >>> EmbeddingNorm()(torch.tensor([[3.0, 4.0]]), labels=torch.tensor([0])).item()
    5.0
    """

    def __init__(self) -> None:  # otherwise the signature is nn.Module's *args, **kwargs
        super().__init__()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Compute the mean norm of embeddings (B, D) -> scalar; the labels aren't used."""
        return embedding_norm(embeddings)


class EmbeddingDrift(Loss):
    """The loss `embedding_drift`, to be a term of a `WeightedSum`; the thesis sets its weight to 0.3 (3.6.3).

    The stored embeddings (N, D) are those of the embedding bank: one row for each image of the training table. They
    aren't saved with the loss. Until they are set the loss is 0.

    >>> loss = EmbeddingDrift()
    >>> loss.set_embedding_bank(EmbeddingBank(torch.tensor([[0.0, 0.0], [3.0, 2.0]])))
    >>> loss(torch.tensor([[3.0, 4.0]]), labels=torch.tensor([0]), indices=torch.tensor([1])).item()
    2.0
    """

    needs_indices: ClassVar[bool] = True
    num_bank_neighbors: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        # A buffer would be sent to every process in each step by DistributedDataParallel.
        self.stored = torch.empty(0, 0)

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Measure the drift from the embeddings of this bank; see `UsesEmbeddingBank`."""
        self.stored = bank.embeddings

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Compute the mean drift of embeddings (B, D) from ``stored[indices]`` -> scalar; the labels aren't used."""
        if len(self.stored) == 0:
            return 0.0 * embedding_norm(embeddings)
        assert indices is not None
        return embedding_drift(embeddings, self.stored[indices.to(self.stored.device)].to(embeddings.device))
