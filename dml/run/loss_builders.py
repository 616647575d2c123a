"""The builder of the losses of a model's heads."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor, nn

from dml.losses.compose import AtLevel
from dml.losses.loss_contract import check_forward, check_module
from dml.losses.matryoshka import MatryoshkaLoss, choose_sizes
from dml.losses.proxies import count_classes
from dml.ops.training_protocols import UsesHierarchy
from dml.run.building import build
from dml.run.settings import Settings
from dml.runtime.errors import InputError
from dml.runtime.targets import import_object


def build_losses(settings: Settings, embed_dims: Mapping[str, int], labels: NDArray[np.int64]) -> dict[str, nn.Module]:
    """Build a loss for each head -> losses by head.

    The values ``num_classes: ???`` and ``embedding_dim: ???`` of the loss are filled in. Of a Matryoshka loss, which
    has ``sizes``, the ``inner`` loss is built for each size of a prefix. Losses that use the hierarchy of the classes
    get it from the labels.

    Args:
        settings: settings of the run, or of one of its stages.
        embed_dims: sizes of the embeddings by head.
        labels: labels (N, L) of the training images; ``num_classes`` is counted at level 0, or at the level of the
            `AtLevel` that the loss is inside of.

    Raises:
        InputError: if the configuration makes no loss of embeddings and labels.
    """
    num_classes = count_classes(labels)
    built = {}
    for head, size in embed_dims.items():
        loss_config = settings.loss.copy()
        _fill_in(loss_config, num_classes, size)
        built[head] = build(loss_config)
        _set_hierarchies(built[head], torch.from_numpy(labels))
        check_forward(built[head])
    return built


def _set_hierarchies(loss: nn.Module, labels: Tensor) -> None:
    """Give the hierarchy of the classes to the parts of a loss that use it; inside `AtLevel` it is that level alone.

    Raises:
        InputError: if a part isn't the module that it should be.
    """
    check_module(loss)
    if isinstance(loss, UsesHierarchy):
        loss.set_hierarchy(labels)
    for part in loss.children():
        _set_hierarchies(part, labels[:, loss.level, None] if isinstance(loss, AtLevel) else labels)


def _fill_in(node: DictConfig | ListConfig, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> None:
    if _builds(node, AtLevel):
        level = node.level
        if level >= len(num_classes):
            raise InputError(f"loss.level={level}: the data set's labels have levels 0 to {len(num_classes) - 1}")
    if _builds(node, MatryoshkaLoss) and OmegaConf.is_dict(node.inner):
        _fill_in_prefixes(node, num_classes, embedding_dim, level)
    known = {"num_classes": num_classes[level], "embedding_dim": embedding_dim}
    keys: Any = range(len(node)) if isinstance(node, ListConfig) else [*node]
    for key in keys:
        if OmegaConf.is_missing(node, key):
            node[key] = known.get(str(key), "???")
        elif OmegaConf.is_config(node[key]):
            _fill_in(node[key], num_classes, embedding_dim, level)


def _builds(node: DictConfig | ListConfig, kind: type[nn.Module]) -> TypeGuard[DictConfig]:
    """Return whether a node builds an object of a class; other classes may have arguments of the same names."""
    target = import_object(node._target_) if isinstance(node, DictConfig) and "_target_" in node else None
    return isinstance(target, type) and issubclass(target, kind)


def _fill_in_prefixes(node: DictConfig, num_classes: Sequence[int], embedding_dim: int, level: int) -> None:
    """Replace the inner loss of a Matryoshka loss by a list of losses, one for each size of a prefix."""
    node.sizes = choose_sizes(node.sizes, embedding_dim)
    losses = [node.inner.copy() for _ in node.sizes]
    for loss, size in zip(losses, node.sizes, strict=True):
        _fill_in(loss, num_classes, size, level)
    node.inner = losses
