from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError


class AtLevel(nn.Module):
    """Applies a loss to one level of hierarchical labels.

    >>> from dml.losses.rll import RankedListLoss
    >>> labels = torch.tensor([[0, 0], [1, 0], [2, 1]])  # three classes, two super-classes
    >>> round(AtLevel(RankedListLoss(), level=1)(torch.eye(3), labels).item(), 3)
    0.205

    Args:
        loss: any loss of embeddings (B, D) and labels (B,).
        level: column of the labels; 0 is the finest level.
    """

    def __init__(self, loss: nn.Module, level: int) -> None:
        super().__init__()
        if level < 0:
            raise InputError(f"loss.level={level}: levels count from 0, the finest")
        self.loss = loss
        self.level = level
        # At a coarser level, two images of different finest classes can be positives.
        self.needs_positives = level == 0 and _has_trait(loss, "needs_positives")
        self.needs_indices = _has_trait(loss, "needs_indices")

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar.

        Args:
            embeddings: (B, D) embeddings of the batch.
            labels: (B,) or (B, L) labels of the batch.
            indices: (B,) row indices of the batch in the training table, for losses that need them.

        Raises:
            InputError: if the labels have no such level.
        """
        levels = labels.unsqueeze(1) if labels.ndim == 1 else labels
        if self.level >= levels.shape[1]:
            raise InputError(f"loss.level={self.level}: the data set's labels have levels 0 to {levels.shape[1] - 1}")
        return loss_value(self.loss, embeddings, levels[:, self.level], indices)


class WeightedSum(nn.Module):
    """Adds up weighted losses, such as one loss at several levels, or a loss and its regularisers.

    >>> from dml.losses.regularizers import EmbeddingNorm
    >>> loss = WeightedSum({"once": EmbeddingNorm(), "twice": EmbeddingNorm()}, {"once": 1.0, "twice": 2.0})
    >>> loss(torch.eye(2), torch.tensor([0, 1])).item()
    3.0

    Args:
        terms: losses by name.
        weights: weight of each loss, by the same names.

    Raises:
        InputError: if there are no terms, or the names of terms and weights differ.
    """

    def __init__(self, terms: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        if not terms or set(terms) != set(weights):
            raise InputError(
                f"loss.weights names {', '.join(weights) or 'none'}, loss.terms names {', '.join(terms) or 'none'}: "
                "each term needs one weight, and there must be a term"
            )
        self.terms = nn.ModuleDict(dict(terms))
        self.weights = {name: float(weights[name]) for name in terms}
        self.needs_positives = all(_has_trait(term, "needs_positives") for term in terms.values())
        self.needs_indices = any(_has_trait(term, "needs_indices") for term in terms.values())

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """Compute the sum of the terms for embeddings (B, D) with labels (B,) or (B, L) -> scalar.

        Args:
            embeddings: (B, D) embeddings of the batch.
            labels: (B,) or (B, L) labels of the batch.
            indices: (B,) row indices of the batch in the training table, for losses that need them.
        """
        values = [
            self.weights[name] * loss_value(term, embeddings, labels, indices) for name, term in self.terms.items()
        ]
        return torch.stack(values).sum()


def _has_trait(loss: nn.Module, trait: str) -> bool:
    return bool(getattr(loss, trait, False))


def loss_value(loss: nn.Module, embeddings: Tensor, labels: Tensor, indices: Tensor | None) -> Tensor:
    """Compute a loss, passing the row indices on if it declares ``needs_indices``.

    >>> from dml.losses.regularizers import EmbeddingNorm
    >>> loss_value(EmbeddingNorm(), torch.eye(2), torch.tensor([0, 1]), indices=None).item()
    1.0

    Args:
        loss: a loss of embeddings and labels.
        embeddings: (B, D) embeddings of the batch.
        labels: (B,) or (B, L) labels of the batch.
        indices: (B,) row indices of the batch in the training table.
    """
    value: Tensor
    value = loss(embeddings, labels, indices=indices) if _has_trait(loss, "needs_indices") else loss(embeddings, labels)
    return value
