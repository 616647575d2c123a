"""Every loss, found by its YAML, with a small batch for it."""

from copy import deepcopy
from functools import cache

import torch
from configurations import CONF, compose, settings_of
from omegaconf import DictConfig
from torch import Tensor, nn

from dml.run.builders import build_losses

LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
SIZE = 8
LABELS = torch.tensor([[i // 3, i // 6] for i in range(15)])


def compose_loss(name: str) -> DictConfig:
    """Compose the file of a loss alone, which is quick and sets nothing else, and put it into the default values."""
    config = compose()
    config.loss = compose(command=f"loss/{name}").loss
    return config


def build(name: str) -> nn.Module:
    loss = deepcopy(_build_once(name))
    torch.manual_seed(0)
    return loss


@cache
def _build_once(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_losses(settings_of(compose_loss(name)), {"H": SIZE}, LABELS.numpy())["H"]


def batch(rows: int = len(LABELS), scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(1))


def value_and_gradient(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    assert value.shape == ()
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad
