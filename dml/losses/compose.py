"""Losses made of losses, and what the parts need of a batch."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dml.losses.loss_contract import Loss, check_module, has_trait, loss_value, takes_queries
from dml.ops.pairs import ALL
from dml.runtime.errors import InputError, check_number, check_whole


class AtLevel(Loss):
    """Applies a loss of embeddings (B, D) and labels (B,) to one level of hierarchical labels; level 0 is the finest.

    >>> from dml.losses.rll import RankedListLoss
    >>> labels = torch.tensor([[0, 0], [1, 0], [2, 1]])  # three classes, two super-classes
    >>> round(AtLevel(RankedListLoss(), level=1)(torch.eye(3), labels).item(), 3)
    0.205
    """

    def __init__(self, loss: nn.Module, level: int) -> None:
        super().__init__()
        check_whole("loss.level", level, least=0)
        self.loss = loss
        self.level = level
        # At a coarser level, two images of different finest classes can be positives.
        self.needs_positives = level == 0 and has_trait(loss, "needs_positives")
        self.needs_indices = has_trait(loss, "needs_indices")
        self.takes_queries = takes_queries(loss)

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None, queries: slice = ALL
    ) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        levels = labels.unsqueeze(1) if labels.ndim == 1 else labels
        return loss_value(self.loss, embeddings, levels[:, self.level], indices, queries)


class WeightedSum(Loss):
    """Adds up weighted losses, such as one loss at several levels, or a loss and its regularizers.

    >>> from dml.losses.regularizers import EmbeddingNorm
    >>> loss = WeightedSum({"once": EmbeddingNorm(), "twice": EmbeddingNorm()}, {"once": 1.0, "twice": 2.0})
    >>> loss(torch.eye(2), torch.tensor([0, 1])).item()
    3.0
    """

    def __init__(self, terms: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        weighted = [*weights] if isinstance(weights, Mapping) else []
        if not terms or set(terms) != set(weighted):
            raise InputError(
                f"loss.weights names {', '.join(weighted) or 'none'}, loss.terms names {', '.join(terms) or 'none'}: "
                "each term needs one weight, and there must be a term"
            )
        for name in terms:
            check_number(f"loss.weights.{name}", weights[name])
            check_module(terms[name], f"loss.terms.{name}")
        self.terms = nn.ModuleDict(dict(terms))
        self.weights = {name: float(weights[name]) for name in terms}
        self.needs_positives = all(has_trait(term, "needs_positives") for term in terms.values())
        self.needs_indices = any(has_trait(term, "needs_indices") for term in terms.values())
        self.takes_queries = any(takes_queries(term) for term in terms.values())

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None, queries: slice = ALL
    ) -> Tensor:
        """Compute the sum of the terms for embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        values = [
            self.weights[name] * loss_value(term, embeddings, labels, indices, queries)
            for name, term in self.terms.items()
        ]
        return torch.stack(values).sum()


def check_pairs(loss: nn.Module, images_per_class: int, classes_per_batch: int = 2) -> None:
    """Make sure that a loss which compares images gets at least two of each class, and at least two classes.

    Such a loss, or a part of it, has ``needs_positives = True``. At a coarser level (`AtLevel`) a class has images of
    several finest classes, so that needs no second image.

    >>> from dml.losses.csl import CSLLoss
    >>> check_pairs(CSLLoss(num_classes=3, embedding_dim=2), images_per_class=1)
    """
    if images_per_class < 2 and _compares_images(loss):
        raise InputError(
            f"sampler.images_per_class={images_per_class}: {type(loss).__name__} compares images of one class and "
            "needs at least 2"
        )
    if classes_per_batch < 2 and _compares_images(loss) and not has_trait(loss, "remembers_batches"):
        raise InputError(
            f"sampler.classes_per_batch={classes_per_batch}: {type(loss).__name__} compares images of different "
            "classes too and needs at least 2"
        )


def _compares_images(loss: nn.Module) -> bool:
    if has_trait(loss, "needs_positives"):
        return True
    return not isinstance(loss, AtLevel) and any(map(_compares_images, loss.children()))
