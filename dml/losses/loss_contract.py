"""What a loss is: its base class, what it declares of itself, and what it has to be and to return."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dml.ops.pairs import ALL
from dml.ops.precision import full_precision
from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError


class Loss(nn.Module):
    """A loss of embeddings (B, D) and labels (B,) or (B, L), both of which it checks.

    ``forward`` computes in float32, or in float64 for float64 embeddings, see `dml.ops.precision.full_precision`. The
    ``repr`` names the parameters of ``__init__`` that are kept as attributes.
    """

    num_classes: int | None = None
    """Number of classes, whose labels count from 0; None takes labels of any whole numbers."""

    _takes_labels: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._takes_labels = "labels" in signature(cls.forward).parameters  # a distillation takes a teacher's embeddings
        if "forward" in vars(cls):
            cls.forward = full_precision(cls.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute ``forward``; InputError for what can't be embeddings or labels, or classes on the CPU."""
        batch = [*args, *(kwargs[name] for name in ("embeddings", "labels") if name in kwargs)][:2]
        if self._takes_labels and len(batch) == 2:
            check_batch(*batch)
            if batch[1].device.type == "cpu" and not torch.compiler.is_compiling():  # no step waits for a GPU
                self.check_classes(batch[1])
        return super().__call__(*args, **kwargs)

    def check_classes(self, labels: Tensor) -> None:
        """Make sure that labels (N,) or (N, L) aren't one-hot rows, and that the finest are below `num_classes`."""
        if labels.ndim == 2 and labels.shape[1] > 2 and _is_one_hot(labels):
            raise InputError(f"labels {(*labels.shape,)} are one-hot rows: labels.argmax(dim=1) gives their classes")
        if self.num_classes is not None and len(labels):
            bounds = labels.reshape(len(labels), -1)[:, 0].long().aminmax()
            if bounds.min < 0 or bounds.max >= self.num_classes:
                raise InputError(
                    f"labels from {bounds.min} to {bounds.max}: {type(self).__name__} has classes from 0 to "
                    f"{self.num_classes - 1} (num_classes={self.num_classes})"
                )

    def extra_repr(self) -> str:
        """Return the parameters, such as "margin=0.4"; losses among them have lines of their own."""
        return list_parameters(self)


def list_parameters(module: nn.Module) -> str:
    """List the parameters of a module's ``__init__`` that it keeps as attributes, without losses and large tensors."""
    values = {name: getattr(module, name) for name in signature(type(module)).parameters if hasattr(module, name)}
    texts = {name: _describe_value(value) for name, value in values.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items() if text)


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.numel() == 1 else ""
    if isinstance(value, nn.Module):
        apart = isinstance(value, Loss | nn.ModuleDict | nn.ModuleList)
        return "" if apart else f"{type(value).__name__}({list_parameters(value)})"
    return repr(value)


def check_batch(embeddings: Any, labels: Any) -> None:
    """Check the types and shapes of a batch without waiting for a GPU: broadcasting would give a value for most."""
    if isinstance(embeddings, Tensor) and isinstance(labels, Tensor):
        is_batch = embeddings.ndim == 2 and embeddings.is_floating_point() and labels.ndim in (1, 2)
        if is_batch and len(labels) == len(embeddings):
            return
    kinds = [value.dtype if isinstance(value, Tensor) else type(value).__name__ for value in (embeddings, labels)]
    raise InputError(
        f"{kinds[1]} labels of shape {(*np.shape(labels),)} for {kinds[0]} embeddings of shape "
        f"{(*np.shape(embeddings),)}: must be (B,) or (B, L) for floats (B, D), as tensors"
    )


def _is_one_hot(labels: Tensor) -> bool:
    is_set = labels != 0
    one_each = ((is_set.sum(dim=1) == 1) & (labels.sum(dim=1) == 1)).all()
    return bool(one_each and is_set.any(dim=0).sum() > 1)  # levels may be 1, 0, 0 for all images of a batch


def check_module(loss: object, key: str = "loss") -> None:
    """Check that a loss is a module whose ``__init__`` has called that of its base class."""
    if not isinstance(loss, nn.Module) or "_modules" not in vars(loss):
        raise InputError(
            f"{key}: {dotted_name(loss)} isn't a built nn.Module, whose __init__ begins with super().__init__()"
        )


def check_forward(loss: nn.Module) -> None:
    """Check that a loss takes embeddings and labels; a training would tell after the test of its backbone."""
    try:
        signature(loss.forward).bind(*[None] * (3 if has_trait(loss, "needs_indices") else 2))
    except TypeError as error:
        raise InputError(f"loss: {dotted_name(type(loss))}.forward has to take embeddings, labels: {error}") from error


def check_value(loss: nn.Module, value: Any, *, learns: bool = False) -> None:
    """Check, without waiting for a GPU, that a loss returned a scalar tensor, with a gradient if it ``learns``."""
    if not isinstance(value, Tensor):
        described = type(value).__name__
    elif value.ndim:
        described = f"tensor of shape {(*value.shape,)}"
    elif learns and not value.requires_grad:
        without = "without a gradient" if value.is_floating_point() else f"of whole numbers ({value.dtype})"
        described = f"tensor {without}"
    else:
        return
    name = dotted_name(type(loss))
    raise InputError(f"loss: {name}.forward returned a {described}, expected a scalar tensor with a gradient")


def has_trait(loss: nn.Module, trait: str) -> bool:
    """Return whether a loss declares a trait, such as "needs_positives"."""
    return bool(getattr(loss, trait, False))


def takes_queries(loss: nn.Module) -> bool:
    """Return whether a loss declares ``takes_queries`` and its ``forward``, which a subclass may override, does so."""
    return has_trait(loss, "takes_queries") and _has_argument(type(loss).forward, "queries")


@cache  # every step asks
def _has_argument(function: Callable[..., Any], name: str) -> bool:
    return name in signature(function).parameters


def loss_value(
    loss: nn.Module, embeddings: Tensor, labels: Tensor, indices: Tensor | None, queries: slice = ALL
) -> Tensor:
    """Compute a loss of embeddings (B, D), with indices (B,) if it ``needs_indices``, and queries if it takes them.

    A loss that takes queries is a mean over the rows of the batch, and computes it over some of them. So the mean of
    its values for equal shares of the rows is its value for the batch. Any other loss is that of the whole batch,
    whatever the queries. The same is then true for each weighted sum of losses.

    >>> from dml.losses.regularizers import EmbeddingNorm
    >>> loss_value(EmbeddingNorm(), torch.eye(2), torch.tensor([0, 1]), indices=None).item()
    1.0
    """
    arguments: dict[str, Any] = {}
    if has_trait(loss, "needs_indices"):
        arguments["indices"] = indices
    if takes_queries(loss):
        arguments["queries"] = queries
    value: Tensor = loss(embeddings, labels, **arguments)
    check_value(loss, value)
    return value
