"""Initial values for the proxies of losses."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dml.losses.compose import AtLevel
from dml.runtime.errors import InputError

ProxySet = tuple[int, Tensor]
"""The level of the classes, and a proxy (C, D) or K proxies (C, K, D) of each."""

SPREAD = 0.1
"""How far several proxies of a class begin from its mean, each in the direction that was drawn for it: the tangent of
the angle where the two are orthogonal. With 0 their first gradients would differ in length alone."""


def count_classes(labels: NDArray[np.int64]) -> list[int]:
    """Count the classes of each level of training labels (N, L), whose classes are numbered from 0."""
    counts: list[int] = (labels.max(axis=0) + 1).tolist()
    return counts


def proxy_sets(loss: nn.Module, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> Iterator[ProxySet]:
    """Find the proxies (C, D) or (C, K, D) in a loss and its terms: yield (level, proxies).

    Proxies are a tensor that a part of the loss names ``proxies``, with one row or K rows for each class, and at most
    as many columns as an embedding: fewer are those of a prefix. A tensor of another shape is left to the loss. Writing
    to the proxies in place changes the loss.

    >>> from dml.losses.happier import ClusterLoss
    >>> loss = AtLevel(ClusterLoss(3, 2), level=1)
    >>> [(level, proxies.shape) for level, proxies in proxy_sets(loss, num_classes=[9, 3], embedding_dim=2)]
    [(1, torch.Size([3, 2]))]
    """
    if isinstance(loss, AtLevel):
        yield from proxy_sets(loss.loss, num_classes, embedding_dim, loss.level)
    elif _has_proxies_of_each_class(proxies := getattr(loss, "proxies", None), num_classes[level], embedding_dim):
        yield level, proxies
    else:
        for part in loss.children():
            yield from proxy_sets(part, num_classes, embedding_dim, level)


def _has_proxies_of_each_class(proxies: Any, num_classes: int, embedding_dim: int) -> TypeGuard[Tensor]:
    has_rows = isinstance(proxies, Tensor) and proxies.ndim in (2, 3)
    return has_rows and len(proxies) == num_classes and proxies.shape[-1] <= embedding_dim


def check_class_means(
    losses: Mapping[str, nn.Module], num_classes: Sequence[int], embed_dims: Mapping[str, int]
) -> None:
    """Make sure that each loss has proxies, which ``training.proxies=class_means`` begins at the means of the classes.

    >>> from dml.losses.happier import ClusterLoss
    >>> check_class_means({"H": ClusterLoss(3, 2)}, num_classes=[3], embed_dims={"H": 2})
    """
    for head, loss in losses.items():
        if not list(proxy_sets(loss, num_classes, embed_dims[head])):
            raise InputError(
                f"training.proxies=class_means: {type(loss).__name__} learns no proxies of the classes, which are a "
                f"tensor proxies of shape {(num_classes[0], embed_dims[head])}, or of three dimensions with several of "
                "each class; use training.proxies=null"
            )


@torch.no_grad()
def begin_at_class_means(sets: Iterable[ProxySet], embeddings: Tensor, labels: Tensor) -> None:
    """Turn each proxy in the direction of the mean L2-normalized embedding (N, D) of the class.

    Several proxies of a class begin close to the mean, apart by `SPREAD`. A proxy keeps its length, because its length
    determines how fast its direction changes at a given learning rate.
    A proxy doesn't change if its class has no embeddings, or if they add up to 0.

    >>> from dml.losses.happier import ClusterLoss
    >>> loss = ClusterLoss(num_classes=2, embedding_dim=2)
    >>> sets = proxy_sets(loss, num_classes=[2], embedding_dim=2)
    >>> begin_at_class_means(sets, torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([[0], [1]]))
    >>> F.normalize(loss.proxies.detach()).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    for level, proxies in sets:
        rows = labels[:, level].long()
        is_known = rows >= 0
        unit = F.normalize(embeddings[:, : proxies.shape[-1]], dim=1)  # the loss may be that of a prefix
        sums = unit.new_zeros(len(proxies), unit.shape[1]).index_add_(0, rows[is_known], unit[is_known]).to(proxies)
        directions = F.normalize(sums, dim=1)
        if proxies.ndim == 3:
            sums, drawn = sums.unsqueeze(1), F.normalize(proxies, dim=2)
            directions = F.normalize(directions.unsqueeze(1) + SPREAD * drawn, dim=2)
        turned = directions * proxies.norm(dim=-1, keepdim=True)
        proxies.copy_(torch.where(sums.any(dim=-1, keepdim=True), turned, proxies))
