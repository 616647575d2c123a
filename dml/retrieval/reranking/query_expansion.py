"""Alpha query expansion: each query becomes a weighted mean of itself and its nearest neighbours."""

from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.retrieval.reranking.gallery_comparison import Comparison
from dml.retrieval.rows import unit_rows

PAIRS = 2**16
"""Number of neighbours whose vectors are in memory at a time."""


@dataclass(frozen=True)
class AlphaQueryExpansion:
    r"""Alpha query expansion (Radenovic, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation").

    .. math:: q' = \frac{v}{\|v\|}, \qquad v = q + \sum_{i=1}^n \max(q^\top x_i, 0)^\alpha \, x_i

    where x_1, ..., x_n are the query's nearest gallery items. Items that the query excludes are none of them: in a
    gallery of the queries, the query itself counts once, with weight 1. The paper doesn't say what becomes of a
    negative similarity; here it counts 0.

    Args:
        n: number of neighbours, without the query itself; a smaller gallery gives all its items.
        alpha: exponent of the similarity, which is the weight of a neighbour; 0 is the plain mean.

    Raises:
        InputError: if ``n`` is below 1, or ``alpha`` below 0 or no finite number.
    """

    n: int = 10
    alpha: float = 3.0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 <= self.alpha < inf:
            raise InputError(f"alpha_qe: n={self.n} must be at least 1, alpha={self.alpha} a finite number, 0 or more")

    def __call__(self, comparison: Comparison) -> Comparison:
        """Expand the queries by the gallery as it is."""
        k, expanded = min(self.n, comparison.num_ranked), torch.empty_like(comparison.queries)
        for rows in comparison.split():
            distances, items = comparison.nearest(comparison.distances(rows), k)
            size = max(PAIRS // k, 1)
            for start in range(0, len(rows), size):
                part = slice(start, min(start + size, len(rows)))
                queries = torch.arange(rows.start + part.start, rows.start + part.stop, device=items.device)
                pairs = queries.repeat_interleave(k), items[part].flatten()
                neighbors = comparison.gallery_vectors(*pairs).reshape(len(queries), k, -1)
                expanded[queries] = expand_query(comparison.queries[queries], neighbors, -distances[part], self.alpha)
        return replace(
            comparison, queries=unit_rows(expanded, "expanded queries"), is_own_gallery=False, is_changed=True
        )


def expand_query(query: Tensor, neighbors: Tensor, similarities: Tensor, alpha: float) -> Tensor:
    """Add neighbours to queries, weighted by their similarities, see `AlphaQueryExpansion`.

    >>> expand_query(torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.5]), alpha=2.0).tolist()
    [1.0, 0.25]

    Args:
        query: (..., D) embeddings.
        neighbors: (..., n, D) embeddings of the neighbours.
        similarities: (..., n) their cosine similarities with the query.
        alpha: exponent of the similarity.

    Returns:
        (..., D) the sums, which are not of unit length.
    """
    return query + torch.einsum("...n,...nd->...d", similarities.clamp(min=0.0) ** alpha, neighbors)
