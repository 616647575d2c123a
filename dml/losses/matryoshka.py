from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dml.losses.loss_contract import Loss, check_module, has_trait, loss_value, takes_queries
from dml.ops.pairs import ALL
from dml.ops.training_protocols import UsesEmbeddingBank
from dml.runtime.errors import InputError, check_number

SMALLEST = 8
"""The size of the smallest prefix that is chosen without being named, as in the paper."""


class MatryoshkaLoss(Loss):
    """Adds up a loss of prefixes of the embedding, so that its first dimensions alone can be compared, too.

    L = sum_m c_m L_m(z_1:m), where z_1:m are the first m dimensions of each embedding: Eq. 1 of "Matryoshka
    Representation Learning" (Kusupati et al., NeurIPS 2022), whose weights c_m are 1. Each prefix has a loss of its
    own, with proxies of its own if the loss has proxies. A loss that L2-normalizes embeddings normalizes each prefix.

    Departures: the paper's L_m is the softmax loss of a linear classifier; here it may be any loss of embeddings and
    labels. The paper's variant with shared classifiers (MRL-E) isn't here.

    >>> from dml.losses.regularizers import EmbeddingNorm
    >>> loss = MatryoshkaLoss([EmbeddingNorm(), EmbeddingNorm()], sizes=[1, 2])
    >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([0])).item()  # 3 + 5
    8.0

    Args:
        inner: loss of each prefix. In a configuration it is one loss, of which the run builds one for each size.
    """

    def __init__(
        self, inner: Sequence[nn.Module], sizes: Sequence[int], weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.sizes = _check_sizes(sizes)
        for weight in weights or ():
            check_number("loss.weights", weight)
        self.weights = [1.0] * len(self.sizes) if weights is None else [float(weight) for weight in weights]
        if len(self.weights) != len(self.sizes):
            raise InputError(f"loss.weights={self.weights}: one weight for each of the sizes {self.sizes}, or null")
        for loss in inner:
            check_module(loss, "loss.inner")
        self.inner = nn.ModuleList(inner)
        for part in self.inner.modules():
            if isinstance(part, UsesEmbeddingBank):
                raise InputError(
                    f"loss.inner: {type(part).__name__} compares whole embeddings with stored ones; "
                    "loss=matryoshka takes losses of the batch alone"
                )
        self.needs_positives = all(has_trait(loss, "needs_positives") for loss in inner)
        self.needs_indices = any(has_trait(loss, "needs_indices") for loss in inner)
        self.takes_queries = any(takes_queries(loss) for loss in inner)

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None, queries: slice = ALL
    ) -> Tensor:
        """Compute the weighted sum of the losses of the prefixes of embeddings (B, D) -> scalar."""
        _check_largest(self.sizes, embeddings.shape[1])
        values = [
            weight * loss_value(loss, embeddings[:, :size], labels, indices, queries)
            for loss, size, weight in zip(self.inner, self.sizes, self.weights, strict=True)
        ]
        return torch.stack(values).sum()


def choose_sizes(sizes: Any, embedding_dim: int) -> list[int]:
    """Return the sizes of the prefixes of an embedding; None takes the whole and its halves, from `SMALLEST` on.

    >>> choose_sizes(None, 64), choose_sizes([16, 48], 64)
    ([8, 16, 32, 64], [16, 48])
    """
    if sizes is not None:
        return _check_largest(_check_sizes(sizes), embedding_dim)
    halves = [embedding_dim]
    while halves[0] // 2 >= SMALLEST:
        halves.insert(0, halves[0] // 2)
    return halves


def _check_sizes(sizes: Any) -> list[int]:
    listed = [] if isinstance(sizes, str) or not isinstance(sizes, Sequence) else [*sizes]
    is_ascending = all(first < second for first, second in zip([0, *listed], listed, strict=False))
    if not listed or not all(isinstance(size, int) for size in listed) or not is_ascending:
        raise InputError(
            f"loss.sizes={sizes}: must be a list of ascending whole numbers, such as [8,16,32,64], or null"
        )
    return listed


def _check_largest(sizes: list[int], embedding_dim: int) -> list[int]:
    if sizes[-1] > embedding_dim:
        raise InputError(f"loss.sizes={sizes}: an embedding has {embedding_dim} dimensions, no prefix can have more")
    return sizes
