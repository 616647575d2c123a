"""Losses that keep embeddings comparable with those of an earlier model: classifiers that don't learn."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest
from dml.ops.precision import full_precision
from dml.runtime.errors import InputError, check_number


class InfluenceLoss(Loss):
    """The influence loss of backward-compatible training, BCT (Shen et al., 2020): the old classifier, which is frozen.

    It is the softmax cross entropy of the scaled cosines of the new embeddings and the old classifier's rows, averaged
    over the images whose class the old classifier knows. Departure: the paper's logits needn't be cosines.

    >>> loss = InfluenceLoss(torch.eye(2), scale=1.0)
    >>> round(loss(torch.tensor([[0.6, 0.8], [0.8, -0.6]]), torch.tensor([1, 0])).item(), 4)
    0.4093

    Args:
        classifier: (C, D) a row for each class, such as `class_means`; zeros for a class that isn't known.
        scale: factor of the cosines before the softmax.
    """

    def __init__(self, classifier: Tensor, scale: float = 16.0) -> None:
        super().__init__()
        # A buffer would be sent to every process in each step by DistributedDataParallel.
        self.classifier = F.normalize(classifier, dim=1)
        check_number("loss.scale", scale, above=0)
        self.scale, self.num_classes = scale, len(classifier)

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        self.classifier = self.classifier.to(embeddings.device)
        classes, is_known = finest(labels), self.classifier.any(dim=1)
        cosines = F.linear(F.normalize(embeddings, dim=1), self.classifier.to(embeddings.dtype))
        logits = (self.scale * cosines).masked_fill(~is_known, torch.finfo(cosines.dtype).min)
        counted = is_known[classes]
        total = F.cross_entropy(logits, torch.where(counted, classes, -100), reduction="sum")  # which leaves out -100
        return total / counted.sum().clamp(min=1)


def class_means(vectors: Tensor, classes: Tensor) -> Tensor:
    """Compute the L2-normalized mean of the L2-normalized vectors of each class, in place of a classifier.

    (N, D) vectors without those of NaN, (N,) classes from 0 to C - 1 -> (C, D); zeros for a class without vectors.
    """
    unit = F.normalize(vectors, dim=1).nan_to_num(0.0)
    sums = unit.new_zeros(int(classes.max()) + 1, unit.shape[1]).index_add_(0, classes, unit)
    return F.normalize(sums, dim=1)


def simplex_classifier(num_classes: int) -> Tensor:
    """Return the corners (C, C - 1) float64 of a regular simplex: unit rows with cosines of -1 / (C - 1).

    >>> simplex_classifier(3).round(decimals=3).tolist()
    [[0.866, 0.5], [-0.866, 0.5], [0.0, -1.0]]
    """
    corners = torch.ones(num_classes, num_classes - 1, dtype=torch.float64).triu()
    sizes = torch.arange(1, num_classes, dtype=torch.float64)
    corners[1:].diagonal().copy_(-sizes)  # Helmert's contrasts: column k tells the first k classes from the next
    return F.normalize(corners / (sizes * (sizes + 1)).sqrt(), dim=1)


class SimplexLoss(InfluenceLoss):
    """Softmax cross entropy with a classifier that is fixed to a regular simplex, d-Simplex (Biondi et al., 2024).

    Models that were trained with it are comparable, if the classes of the one are the first classes of the other. An
    embedding of size D has room for D + 1 classes; those that the data doesn't have yet are negatives, as in the paper.

    >>> round(SimplexLoss(3, 2, scale=1.0)(simplex_classifier(3), torch.tensor([0, 1, 2])).item(), 4)
    0.369

    Args:
        num_classes: number of classes of the finest level, C.
        embedding_dim: size of an embedding, D.
        scale: factor of the cosines before the softmax.
    """

    def __init__(self, num_classes: int, embedding_dim: int, scale: float = 16.0) -> None:
        if num_classes > embedding_dim + 1:
            line = f"model.embed_dim={embedding_dim}: a regular simplex of {num_classes} classes"
            raise InputError(f"{line} needs {num_classes - 1} dimensions or more")
        super().__init__(simplex_classifier(embedding_dim + 1), scale)
        self.num_classes = num_classes
