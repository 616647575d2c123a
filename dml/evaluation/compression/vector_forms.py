"""The vectors that are compared in place of a model's: prefixes of each head, and projections onto components."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dml.evaluation.further_rankings.raw_comparison import PrincipalComponents
from dml.ops.errors import InputError
from dml.retrieval.rows import unit_rows

SMALLEST_PREFIX = 8
"""The number of dimensions of each head in the smallest prefix that is chosen without being named."""


class VectorForm(NamedTuple):
    """Vectors that take the place of a model's, of unit length or 0.

    Args:
        name: name of the form, such as "prefix8".
        train: (M, D) float32 vectors of the training images.
        test: (N, D) float32 vectors of the tested images.
    """

    name: str
    train: Tensor
    test: Tensor


def choose_prefixes(prefixes: Sequence[int] | None, head_dims: Mapping[str, int]) -> list[int]:
    """Return the sizes of the prefixes, the whole embedding last.

    >>> choose_prefixes(None, {"L": 64, "H": 64})
    [8, 16, 32, 64]

    Args:
        prefixes: number of dimensions of each head; None takes the largest head and its halves, down to
            `SMALLEST_PREFIX`.
        head_dims: size of the embedding of each head.

    Raises:
        InputError: if a prefix is larger than every head.
    """
    largest = max(head_dims.values())
    if prefixes is None:
        halves = [largest]
        while halves[-1] // 2 >= SMALLEST_PREFIX:
            halves.append(halves[-1] // 2)
        return halves[::-1]
    if max(prefixes) > largest:
        raise InputError(f"--prefixes {max(prefixes)}: the embedding of a head has {largest} dimensions at most")
    return sorted({*prefixes, largest})


def take_prefix(vectors: Tensor, head_dims: Mapping[str, int], size: int, concatenation: str = "normalized") -> Tensor:
    """Take the first dimensions of each head, and join them as the model joins its heads. (N, D) -> (N, D')

    So a prefix is what a model with smaller heads would give. Heads of no more dimensions than ``size`` keep all of
    them. If all heads do, the vectors are returned as they are.

    >>> take_prefix(torch.tensor([[0.3, 0.4, 0.6, 0.8]]), {"L": 2, "H": 2}, size=1)
    tensor([[0.7071, 0.7071]])

    Args:
        vectors: (N, D) vectors, the heads side by side.
        head_dims: size of the embedding of each head, in the order of the dimensions.
        size: largest number of dimensions of each head.
        concatenation: that of the model, see `dml.models.embedding.EmbeddingModel`.
    """
    if size >= max(head_dims.values()):
        return vectors
    parts = [part[:, :size] for part in torch.split(vectors, [*head_dims.values()], dim=1)]
    if concatenation == "normalized":
        parts = [unit_rows(part, "embeddings") for part in parts]
    return unit_rows(torch.cat(parts, dim=1), "embeddings")


def make_forms(
    train: Tensor,
    test: Tensor,
    head_dims: Mapping[str, int],
    prefixes: Sequence[int],
    concatenation: str = "normalized",
) -> Iterator[VectorForm]:
    """Yield the prefixes, and then the projections onto as many principal components of the training images.

    Args:
        train: (M, D) unit vectors of the training images, M >= 2.
        test: (N, D) unit vectors of the tested images.
        head_dims: size of the embedding of each head.
        prefixes: number of dimensions of each head in each prefix.
        concatenation: how the model joins its heads.
    """
    sizes = []
    for prefix in prefixes:
        train_part, part = (take_prefix(rows, head_dims, prefix, concatenation) for rows in (train, test))
        sizes.append(part.shape[1])
        yield VectorForm(f"prefix{prefix}", train_part, part)
    fitted = [PrincipalComponents.fit(train, size) for size in sizes]
    by_size = {len(components.deviations): components for components in fitted if len(components.deviations)}
    for whiten in (False, True):
        for size, components in by_size.items():
            projected = (unit_rows(components.project(rows, whiten=whiten), "components") for rows in (train, test))
            yield VectorForm(f"pca{size}{'_whitened' if whiten else ''}", *projected)
