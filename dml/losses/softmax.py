import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest


class SoftmaxLoss(Loss):
    r"""Softmax cross entropy of a linear classifier of the embeddings, the simplest baseline.

    L = -log(exp(w_y . v + b_y) / sum_z exp(w_z . v + b_z)), averaged over the batch. Neither the embeddings v nor the
    weights w are L2-normalized; ``conf/loss/normalized_softmax.yaml`` normalizes both. The classifier has PyTorch's
    initial weights of a linear layer.

    >>> import torch
    >>> loss = SoftmaxLoss(num_classes=3, embedding_dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).shape
    torch.Size([])
    """

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.classifier = nn.Linear(embedding_dim, num_classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        weight, bias = (parameter.to(embeddings.dtype) for parameter in self.classifier.parameters())
        return F.cross_entropy(F.linear(embeddings, weight, bias), finest(labels))
