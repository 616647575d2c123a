"""Losses that let embeddings learn from those of another model: (student (B, D), teacher (B, E)) -> scalar.

Only `EmbeddingDistillationLoss` leads into the teacher's space, whose vectors a student can then search. The others
compare relations inside the batch, so the student gets a space of its own.
"""

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dml.losses.loss_contract import Loss


class SimilarityDistillationLoss(Loss):
    """The mean squared difference of the cosines of student and teacher, over all B^2 pairs of the batch.

    The form of UDON (Ypsilantis et al., 2024). The mean has the B pairs of an image with itself, which are 0.

    >>> teacher = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> round(SimilarityDistillationLoss()(torch.eye(3), teacher).item(), 4)
    0.2222
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar."""
        similarities = [unit @ unit.T for unit in (F.normalize(student, dim=1), F.normalize(teacher, dim=1))]
        return (similarities[0] - similarities[1]).square().mean()


class RelationalDistanceLoss(Loss):
    """The distance loss of relational knowledge distillation, RKD-D (Park et al., 2019), Eq. 5 to 7.

    It is the Huber loss of the Euclidean distances, each divided by the mean distance of its batch. The embeddings are
    compared as they are, not L2-normalized. The means are over the pairs of different images, as in the paper; the
    release's last mean is over all B^2 entries, with the zeros of the diagonal.

    >>> RelationalDistanceLoss()(3 * torch.eye(4), torch.eye(4)).item() < 1e-12
    True
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar; 0 for one image."""
        if len(student) < 2:
            return 0.0 * student.sum()
        distances = [F.pdist(rows) for rows in (student, teacher)]
        relative = [part / part.mean().clamp(min=torch.finfo(part.dtype).tiny) for part in distances]
        return F.huber_loss(relative[0], relative[1])


LARGEST_PART = 2**24
"""The largest number of cosines, or of numbers in differences, that an angle loss has in memory for one model."""

SHORTEST_SQUARE = 1e-24  # squared length below which a difference counts as 0, without a gradient


class RelationalAngleLoss(Loss):
    """The angle loss of relational knowledge distillation, RKD-A (Park et al., 2019), Eq. 8 and 9.

    It is the Huber loss of the cosine of the angle at each image j between the directions to two others, i and k. The
    embeddings are compared as they are, not L2-normalized; at equal ones the cosine is 0. The mean is over the
    B (B - 1) (B - 2) triplets of different images, as in the paper; that of the release is over all B^3 entries.
    At most `LARGEST_PART` cosines are in memory, and not B^3: they are computed again in the backward pass.

    >>> RelationalAngleLoss()(3 * torch.eye(4), torch.eye(4)).item() < 1e-12
    True
    """

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar; 0 for fewer than three images."""
        size = len(student)
        if size < 3:
            return 0.0 * student.sum()
        numbers_per_vertex = size * max(size, student.shape[1], teacher.shape[1])
        vertices = torch.arange(size, device=student.device)
        parts = torch.split(vertices, max(1, LARGEST_PART // numbers_per_vertex))
        add: Any = _add_angles if len(parts) == 1 else partial(checkpoint, _add_angles, use_reentrant=False)
        total: Tensor = torch.stack([add(student, teacher, part) for part in parts]).sum()
        return total / (size * (size - 1) * (size - 2))


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

    If both have the same size there is no W, and the student can search the teacher's vectors. Otherwise W is a learned
    linear map, which the checkpoint holds with the loss; only mapped embeddings can search the teacher's vectors.

    >>> round(EmbeddingDistillationLoss(2, 2)(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.4
    """

    def __init__(self, embedding_dim: int, teacher_dim: int) -> None:
        super().__init__()
        self.embedding_dim, self.teacher_dim = embedding_dim, teacher_dim
        self.map = None if embedding_dim == teacher_dim else nn.Linear(embedding_dim, teacher_dim, bias=False)

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) and the teacher's (B, E) -> scalar."""
        mapped = student if self.map is None else F.linear(student, self.map.weight.to(student.dtype))
        return (1 - F.cosine_similarity(mapped, teacher, dim=1)).mean()


class TeacherLoss(Loss):
    """Compares L2-normalized embeddings with another model's vectors (N, E) of the N training images; a term of a loss.

    The vectors aren't saved with the loss.

    >>> loss = TeacherLoss(EmbeddingDistillationLoss(2, 2), torch.tensor([[0.0, 3.0], [2.0, 0.0]]))
    >>> loss(torch.tensor([[5.0, 0.0]]), labels=torch.tensor([0]), indices=torch.tensor([1])).item()
    0.0
    """

    needs_indices: ClassVar[bool] = True

    def __init__(self, loss: nn.Module, vectors: Tensor) -> None:
        super().__init__()
        self.loss = loss
        # A buffer would be sent to every process in each step by DistributedDataParallel.
        self.vectors = F.normalize(vectors, dim=1)

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:  # noqa: ARG002
        """Compute the loss of embeddings (B, D) of the training images ``indices`` (B,) -> scalar."""
        self.vectors = self.vectors.to(embeddings.device)
        value: Tensor = self.loss(F.normalize(embeddings, dim=1), self.vectors[indices].to(embeddings.dtype))
        return value


def find_wanted_vectors(loss: nn.Module) -> Tensor | None:
    """Return the vectors (N, D) of the training images that a loss wants to have as embeddings; None without any."""
    for part in loss.modules():
        if isinstance(part, TeacherLoss) and isinstance(part.loss, EmbeddingDistillationLoss) and part.loss.map is None:
            return part.vectors
    return None
