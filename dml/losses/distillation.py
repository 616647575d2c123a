"""Losses that let embeddings learn from those of another model: (student (B, D), teacher (B, E)) -> scalar.

`SimilarityDistillationLoss`, `RelationalDistanceLoss` and `RelationalAngleLoss` compare relations inside the batch, so
the student gets a space of its own. Only `EmbeddingDistillationLoss` leads into the teacher's space, whose vectors a
student can then search.
"""

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dml.losses.loss_contract import Loss
from dml.ops.precision import full_precision
from dml.runtime.errors import InputError


class SimilarityDistillationLoss(Loss):
    """The mean squared difference of the cosines of student and teacher, over all B^2 pairs of the batch.

    The form of UDON (Ypsilantis et al., 2024). The mean has the B pairs of an image with itself, which are 0.

    >>> teacher = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> round(SimilarityDistillationLoss()(torch.eye(3), teacher).item(), 4)
    0.2222
    """

    def __init__(self) -> None:  # otherwise the signature is nn.Module's *args, **kwargs
        super().__init__()

    @full_precision
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar."""
        similarities = [unit @ unit.T for unit in (F.normalize(student, dim=1), F.normalize(teacher, dim=1))]
        return (similarities[0] - similarities[1]).square().mean()


class RelationalDistanceLoss(Loss):
    """The distance loss of relational knowledge distillation, RKD-D (Park et al., 2019), Eq. 5 to 7.

    It is the Huber loss of the Euclidean distances, each divided by the mean distance of its batch. The embeddings are
    compared as they are, not L2-normalized.

    Departure: the mean is over the pairs of different images, as in the paper. The release has the mean over all B^2
    entries, with the zeros of the diagonal, which is (B - 1) / B of it.

    >>> teacher = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    >>> student = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(RelationalDistanceLoss()(student, teacher).item(), 4)
    0.0052
    """

    def __init__(self) -> None:
        super().__init__()

    @full_precision
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar; 0 for one image."""
        if len(student) < 2:
            return 0.0 * student.sum()
        return F.huber_loss(_relative_distances(student), _relative_distances(teacher))


def _relative_distances(rows: Tensor) -> Tensor:
    """Compute the distances of all pairs (B (B - 1) / 2,), divided by their mean; 0 if all rows are the same."""
    distances = F.pdist(rows)
    mean = distances.mean()
    return distances / torch.where(mean > 0, mean, torch.ones_like(mean))


SHORTEST_SQUARE = 1e-24
"""The squared length below which a difference counts as 0, so that its direction has no gradient."""


class RelationalAngleLoss(Loss):
    """The angle loss of relational knowledge distillation, RKD-A (Park et al., 2019), Eq. 8 and 9.

    It is the Huber loss of the cosine of the angle at each image j between the directions to two others, i and k. The
    embeddings are compared as they are, not L2-normalized. At equal embeddings the cosine is 0.

    Departure: the mean is over the B (B - 1) (B - 2) triplets of different images, as in the paper. The release has the
    mean over all B^3 entries, most of whose others are 0. The angles are computed for some images j at a time, and
    again in the backward pass, so that at most `LARGEST_PART` cosines are in memory, and not B^3.

    >>> teacher = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    >>> student = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(RelationalAngleLoss()(student, teacher).item(), 5)
    0.00335
    """

    def __init__(self) -> None:
        super().__init__()

    @full_precision
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar; 0 for fewer than three images."""
        size = len(student)
        if size < 3:
            return 0.0 * student.sum()
        numbers_per_vertex = size * max(size, student.shape[1], teacher.shape[1])
        parts = torch.arange(size, device=student.device).split(max(1, LARGEST_PART // numbers_per_vertex))
        add: Any = _add_angles if len(parts) == 1 else partial(checkpoint, _add_angles, use_reentrant=False)
        total: Tensor = torch.stack([add(student, teacher, vertices) for vertices in parts]).sum()
        return total / (size * (size - 1) * (size - 2))


LARGEST_PART = 2**24
"""The largest number of cosines, or of numbers in differences, that an angle loss has in memory for one model."""


def _add_angles(student: Tensor, teacher: Tensor, vertices: Tensor) -> Tensor:
    """Add up the Huber loss of the angles at some vertices (V,) over all triplets -> scalar."""
    gaps = F.huber_loss(_cosines_at(student, vertices), _cosines_at(teacher, vertices), reduction="none")
    # where i or k is j both cosines are 0; where i is k they are 1, but for equal embeddings 0
    return (gaps * ~torch.eye(len(student), dtype=torch.bool, device=gaps.device)).sum()


def _cosines_at(rows: Tensor, vertices: Tensor) -> Tensor:
    """Compute the cosines (V, B, B) of the angles at vertices (V,) between the directions to the rows (B, D)."""
    differences = rows - rows[vertices, None]
    squares = differences.square().sum(dim=2, keepdim=True)
    directions = differences * squares.masked_fill(squares < SHORTEST_SQUARE, torch.inf).rsqrt()
    return directions @ directions.transpose(1, 2)


class EmbeddingDistillationLoss(Loss):
    """The mean of 1 - cos(W s, t) of the student's embeddings s and the teacher's t, EmbedDistill (Kim et al., 2023).

    If both have the same size there is no W, and the student's embeddings can search the teacher's vectors. Otherwise W
    is a learned linear map without a bias, which the checkpoint of a training holds with the loss; only mapped
    embeddings can search the teacher's vectors.

    >>> round(EmbeddingDistillationLoss(2, 2)(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.4

    Args:
        embedding_dim: size of a student's embedding, D.
        teacher_dim: size of a teacher's embedding, E.
    """

    def __init__(self, embedding_dim: int, teacher_dim: int) -> None:
        super().__init__()
        self.embedding_dim, self.teacher_dim = embedding_dim, teacher_dim
        self.map = None if embedding_dim == teacher_dim else nn.Linear(embedding_dim, teacher_dim, bias=False)

    @full_precision
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar."""
        mapped = student if self.map is None else F.linear(student, self.map.weight.to(student.dtype))
        return (1 - F.cosine_similarity(mapped, teacher, dim=1)).mean()


class TeacherLoss(Loss):
    """Compares embeddings with the vectors of the same images by another model, to be a term of a `WeightedSum`.

    A search compares cosines, so both are L2-normalized first. The vectors aren't saved with the loss.

    >>> loss = TeacherLoss(EmbeddingDistillationLoss(2, 2), torch.tensor([[0.0, 3.0], [2.0, 0.0]]))
    >>> loss(torch.tensor([[5.0, 0.0]]), labels=torch.tensor([0]), indices=torch.tensor([1])).item()
    0.0

    Args:
        loss: loss of (student (B, D), teacher (B, E)).
        vectors: (N, E) the teacher's vectors of the N training images.
    """

    needs_indices: ClassVar[bool] = True
    needs_positives: ClassVar[bool] = False

    def __init__(self, loss: nn.Module, vectors: Tensor) -> None:
        super().__init__()
        self.loss = loss
        # A buffer would be sent to every process in each step by DistributedDataParallel.
        self.vectors = F.normalize(vectors, dim=1)

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Compute the loss of embeddings (B, D) of the training images ``indices`` (B,) -> scalar.

        Raises:
            InputError: if there are no indices.
        """
        if indices is None:
            raise InputError(f"{len(self.vectors)} vectors of a teacher: needs the batch's row indices")
        self.vectors = self.vectors.to(embeddings.device)
        value: Tensor = self.loss(F.normalize(embeddings, dim=1), self.vectors[indices].to(embeddings.dtype))
        return value
