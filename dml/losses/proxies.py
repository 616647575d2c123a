"""Initial values for the proxies of losses."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.compose import AtLevel
from dml.ops.errors import InputError


def proxy_sets(loss: nn.Module, level: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Find the proxies in a loss and in its terms: yield (level of the classes, proxies (C, D)).

    Only parts of the loss that learn exactly one proxy of each class are found. Writing to the proxies in place
    changes the loss.

    >>> from dml.losses.happier import ClusterLoss
    >>> [(level, proxies.shape) for level, proxies in proxy_sets(AtLevel(ClusterLoss(3, 2), level=1))]
    [(1, torch.Size([3, 2]))]
    """
    if isinstance(loss, AtLevel):
        yield from proxy_sets(loss.loss, loss.level)
    elif isinstance(proxies := getattr(loss, "proxies", None), Tensor):
        yield level, proxies
    else:
        for part in loss.children():
            yield from proxy_sets(part, level)


def check_beginning(choice: str | None, losses: Iterable[nn.Module]) -> None:
    """Check a choice of initial proxies.

    "auto" takes class means where a loss has proxies, "class_means" wants that it has them, and None keeps random ones.

    >>> from dml.losses.happier import ClusterLoss
    >>> check_beginning("class_means", [ClusterLoss(3, 2)])

    Raises:
        InputError: if the choice is another one, or if class means are chosen for a loss without proxies.
    """
    if choice not in (None, "auto", "class_means"):
        raise InputError(f"proxies={choice}: must be auto, class_means, or null to keep the random proxies of the loss")
    for loss in losses:
        if choice == "class_means" and not list(proxy_sets(loss)):
            name = type(loss).__name__
            raise InputError(f"proxies={choice}: {name} doesn't learn one proxy of each class; use proxies=null")


@torch.no_grad()
def begin_at_class_means(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Turn each proxy of a loss in the direction of the mean L2-normalised embedding of the class.

    A proxy keeps its length, because its length determines how fast its direction changes at a given learning rate.
    A proxy doesn't change if its class has no embeddings, or if they add up to 0.

    >>> from dml.losses.happier import ClusterLoss
    >>> loss = ClusterLoss(num_classes=2, embedding_dim=2)
    >>> begin_at_class_means(loss, torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([[0], [1]]))
    >>> F.normalize(loss.proxies.detach()).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]

    Args:
        loss: any loss; a loss without proxies doesn't change. Proxies of fewer than D dimensions are those of a prefix.
        embeddings: (N, D) embeddings of the training images.
        labels: (N, L) labels of the training images.
    """
    for level, proxies in proxy_sets(loss):
        unit = F.normalize(embeddings[:, : proxies.shape[1]], dim=1)  # the loss may be that of a prefix
        sums = unit.new_zeros(proxies.shape).index_add_(0, labels[:, level].long(), unit).to(proxies)
        turned = F.normalize(sums, dim=1) * proxies.norm(dim=1, keepdim=True)
        proxies.copy_(torch.where(sums.any(dim=1, keepdim=True), turned, proxies))
