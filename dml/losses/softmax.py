from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.pairs import finest
from dml.ops.precision import full_precision


class SoftmaxLoss(nn.Module):
    r"""Softmax cross entropy of a linear classifier of the embeddings, as they are: the plain baseline.

    L = -log(exp(w_y . v + b_y) / sum_z exp(w_z . v + b_z)), averaged over the batch. Unlike ``normalized_softmax``
    neither embeddings v nor weights w are L2-normalised. The classifier begins as a linear layer of PyTorch's does.

    Args:
        num_classes: C, of the finest level.
        embedding_dim: D.
    """

    needs_positives: ClassVar[bool] = False

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(embedding_dim, num_classes)

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        weight, bias = (parameter.to(embeddings.dtype) for parameter in self.classifier.parameters())
        return F.cross_entropy(F.linear(embeddings, weight, bias), finest(labels))
