from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError


class AtLevel(nn.Module):
    """A flat loss at one level of the labels.

    Args:
        loss: any loss of embeddings and labels (B,).
        level: column of the labels; 0 is the finest.
    """

    def __init__(self, loss: nn.Module, level: int) -> None:
        super().__init__()
        if level < 0:
            raise InputError(f"loss.level={level}: levels count from 0, the finest")
        self.loss = loss
        self.level = level
        # at a coarser level two images of different finest classes are positives
        self.needs_positives = level == 0 and _says(loss, "needs_positives")
        self.needs_indices = _says(loss, "needs_indices")

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L), rows (B,) of the training table -> scalar.

        Raises:
            InputError: if the labels lack the level.
        """
        levels = labels.unsqueeze(1) if labels.ndim == 1 else labels
        if self.level >= levels.shape[1]:
            raise InputError(f"loss.level={self.level}: the data set's labels have levels 0 to {levels.shape[1] - 1}")
        return loss_value(self.loss, embeddings, levels[:, self.level], indices)


class WeightedSum(nn.Module):
    """Sum of weight x loss: of one flat loss at several levels, of a loss and its regularisers, of different losses.

    Args:
        terms: losses by name.
        weights: for each of them its weight.
    """

    def __init__(self, terms: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        if not terms or set(terms) != set(weights):
            raise InputError(f"loss.weights: of {', '.join(weights)}; loss.terms: {', '.join(terms)}")
        self.terms = nn.ModuleDict(dict(terms))
        self.weights = {name: float(weights[name]) for name in terms}
        self.needs_positives = all(_says(term, "needs_positives") for term in terms.values())
        self.needs_indices = any(_says(term, "needs_indices") for term in terms.values())

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L), rows (B,) of the training table -> scalar."""
        values = [
            self.weights[name] * loss_value(term, embeddings, labels, indices) for name, term in self.terms.items()
        ]
        return torch.stack(values).sum()


def _says(loss: nn.Module, trait: str) -> bool:
    return bool(getattr(loss, trait, False))


def loss_value(loss: nn.Module, embeddings: Tensor, labels: Tensor, indices: Tensor | None) -> Tensor:
    """The loss, given the row indices if it asks for them."""
    value: Tensor
    value = loss(embeddings, labels, indices=indices) if _says(loss, "needs_indices") else loss(embeddings, labels)
    return value
