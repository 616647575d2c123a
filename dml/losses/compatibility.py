"""Losses that keep embeddings comparable with those of an earlier model: classifiers that don't learn."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest
from dml.ops.precision import full_precision
from dml.runtime.errors import InputError


class InfluenceLoss(Loss):
    """The influence loss of backward-compatible training, BCT (Shen et al., 2020): the old classifier, which is frozen.

    It is the softmax cross entropy of the scaled cosines of the new embeddings and the old classifier's rows, averaged
    over the images whose class the old classifier knows; 0 if it knows none.

    Departure: the old classifier's features needn't be L2-normalized in the paper.

    >>> loss = InfluenceLoss(torch.eye(2), scale=1.0)
    >>> round(loss(torch.tensor([[0.6, 0.8], [0.8, -0.6]]), torch.tensor([1, 0])).item(), 4)
    0.4093

    Args:
        classifier: (C, D) a row for each class; a row of zeros is that of a class that the old model doesn't know.
            Without a classifier, its rows are the class means of the old embeddings, see `class_means`.
        scale: factor of the cosines before the softmax.
    """

    needs_positives: ClassVar[bool] = False

    def __init__(self, classifier: Tensor, scale: float = 16.0) -> None:
        super().__init__()
        # A buffer would be sent to every process in each step by DistributedDataParallel.
        self.classifier = F.normalize(classifier, dim=1)
        self.scale = scale

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        self.classifier = self.classifier.to(embeddings.device)
        classes, is_known = finest(labels), self.classifier.any(dim=1)
        cosines = F.linear(F.normalize(embeddings, dim=1), self.classifier.to(embeddings.dtype))
        logits = (self.scale * cosines).masked_fill(~is_known, torch.finfo(cosines.dtype).min)
        terms = F.cross_entropy(logits, classes, reduction="none")
        counted = is_known[classes]
        return torch.where(counted, terms, torch.zeros_like(terms)).sum() / counted.sum().clamp(min=1)


def class_means(vectors: Tensor, classes: Tensor) -> Tensor:
    """Compute the L2-normalized mean of the L2-normalized vectors of each class, which stands for a classifier.

    >>> class_means(torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]

    Args:
        vectors: (N, D) vectors of images; a row with NaN is left out.
        classes: (N,) classes of the images, from 0 to C - 1.

    Returns:
        (C, D) a row for each class; zeros for a class without vectors.
    """
    unit = F.normalize(vectors, dim=1).nan_to_num(0.0)
    sums = unit.new_zeros(int(classes.max()) + 1, unit.shape[1]).index_add_(0, classes, unit)
    return F.normalize(sums, dim=1)


def simplex_classifier(num_classes: int) -> Tensor:
    """Return the corners (C, C - 1) float64 of a regular simplex: unit rows with cosines of -1 / (C - 1).

    >>> simplex_classifier(3).round(decimals=3).tolist()
    [[0.866, 0.5], [-0.866, 0.5], [0.0, -1.0]]

    Raises:
        InputError: if there are fewer than two classes.
    """
    if num_classes < 2:
        raise InputError(f"simplex of {num_classes} classes: needs at least 2")
    corners = torch.ones(num_classes, num_classes - 1, dtype=torch.float64).triu()
    sizes = torch.arange(1, num_classes, dtype=torch.float64)
    corners[1:].diagonal().copy_(-sizes)  # Helmert's contrasts: column k tells the first k classes from the next
    return F.normalize(corners / (sizes * (sizes + 1)).sqrt(), dim=1)


class SimplexLoss(InfluenceLoss):
    """Softmax cross entropy with a classifier that is fixed to a regular simplex, d-Simplex (Biondi et al., 2024).

    Models that were trained with it are comparable, if the classes of the one are the first classes of the other. An
    embedding of size D has room for D + 1 classes; those that the data doesn't have yet are negatives, as in the paper.

    >>> loss = SimplexLoss(num_classes=3, embedding_dim=2, scale=1.0)
    >>> round(loss(simplex_classifier(3), torch.tensor([0, 1, 2])).item(), 4)
    0.369

    Args:
        num_classes: number of classes of the finest level, C.
        embedding_dim: size of an embedding, D.
        scale: factor of the cosines before the softmax.

    Raises:
        InputError: if there are more than D + 1 classes.
    """

    def __init__(self, num_classes: int, embedding_dim: int, scale: float = 16.0) -> None:
        if num_classes > embedding_dim + 1:
            raise InputError(
                f"model.embed_dim={embedding_dim}: a regular simplex of {num_classes} classes needs "
                f"{num_classes - 1} dimensions or more"
            )
        super().__init__(simplex_classifier(embedding_dim + 1), scale)
