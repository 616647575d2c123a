"""Where the proxies of losses begin."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.losses.compose import AtLevel
from dml.ops.errors import InputError


def proxy_sets(loss: nn.Module, level: int = 0) -> Iterator[tuple[int, Tensor]]:
    """(the level, its proxies (C, D)) of each part of a loss that learns one proxy of each class of a level.

    The proxies are views: what is written to them in place the loss compares with.
    """
    if isinstance(loss, AtLevel):
        yield from proxy_sets(loss.loss, loss.level)
    elif isinstance(proxies := getattr(loss, "proxies", None), Tensor):
        yield level, proxies
    else:
        for part in loss.children():
            yield from proxy_sets(part, level)


def check_beginning(begin: str | None, losses: Iterable[nn.Module]) -> None:
    """Makes sure that proxies can begin there: at "class_means", or None for where the losses draw them.

    Raises:
        InputError: for anything else, or a loss without proxies.
    """
    if begin not in (None, "class_means"):
        raise InputError(f"proxies={begin}: class_means, or null for where the loss draws them")
    for loss in losses:
        if begin and not list(proxy_sets(loss)):
            raise InputError(f"proxies={begin}: {type(loss).__name__} doesn't learn one proxy of each class; null")


@torch.no_grad()
def begin_at_class_means(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    """Turns each proxy of a loss to the mean of its class's L2-normalised embeddings.

    It keeps its length, and so how fast its direction changes at a learning rate. Without any embedding of its
    class, or with embeddings that cancel out, it stays as it is.

    Args:
        loss: of any kind; one without proxies isn't changed.
        embeddings: (N, D), of the training images.
        labels: (N, L), their classes.
    """
    unit = F.normalize(embeddings, dim=1)
    for level, proxies in proxy_sets(loss):
        sums = unit.new_zeros(proxies.shape).index_add_(0, labels[:, level], unit).to(proxies)
        turned = F.normalize(sums, dim=1) * proxies.norm(dim=1, keepdim=True)
        proxies.copy_(torch.where(sums.any(dim=1, keepdim=True), turned, proxies))
