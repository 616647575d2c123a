"""What a loss has to be, and what it has to return: a mistake in a loss of the user's own is one line."""

from functools import partial
from inspect import isroutine, signature
from typing import Any

import torch
from torch import Tensor, nn

from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError


class Loss(nn.Module):
    """A loss whose ``repr`` names its parameters: those of its ``__init__`` that it keeps as attributes."""

    num_classes: int | None = None
    """Number of classes, whose labels count from 0; None takes labels of any whole numbers."""

    _takes_labels: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._takes_labels = "labels" in signature(cls.forward).parameters  # a distillation takes a teacher's embeddings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute ``forward``; InputError for what can't be embeddings or labels, or classes on the CPU."""
        batch = [*args, *(kwargs[name] for name in ("embeddings", "labels") if name in kwargs)][:2]
        if self._takes_labels and len(batch) == 2:
            check_batch(*batch, of_classes=self.num_classes is not None)
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


def check_batch(embeddings: Any, labels: Any, *, of_classes: bool) -> None:
    """Check the types and shapes of embeddings (B, D) and labels (B,) or (B, L), without waiting for a GPU."""
    for name, value in (("embeddings", embeddings), ("labels", labels)):
        if not isinstance(value, Tensor):
            names = ", of names torch.as_tensor(numpy.unique(labels, return_inverse=True)[1])" * (name == "labels")
            raise InputError(f"{name}: {type(value).__name__}, must be a tensor: torch.as_tensor({name}){names}")
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(f"embeddings of shape {(*embeddings.shape,)}, {embeddings.dtype}: must be (B, D) floats")
    if labels.ndim not in (1, 2) or len(labels) != len(embeddings):
        raise InputError(
            f"labels of shape {(*labels.shape,)} for embeddings of shape {(*embeddings.shape,)}: "
            "must be (B,) or (B, L) for (B, D)"
        )
    if of_classes and labels.is_floating_point():
        raise InputError(f"labels of {labels.dtype}: must be whole numbers, such as labels.long()")


def _is_one_hot(labels: Tensor) -> bool:
    is_set = labels != 0
    one_each = ((is_set.sum(dim=1) == 1) & (labels.sum(dim=1) == 1)).all()
    return bool(one_each and is_set.any(dim=0).sum() > 1)  # levels may be 1, 0, 0 for all images of a batch


VALUE = "expected a scalar tensor with a gradient"


def check_module(loss: object, key: str = "loss") -> None:
    """Check that a loss is a module whose ``__init__`` has called that of its base class."""
    if isinstance(loss, nn.Module):
        if "_modules" not in vars(loss):
            raise InputError(f"{key}: {dotted_name(type(loss))}.__init__ has to begin with super().__init__()")
        return
    made = loss.func if isinstance(loss, partial) else loss
    if isroutine(made):
        raise InputError(f"{key}: {dotted_name(made)} is a function, expected an nn.Module")
    if isinstance(loss, partial):
        raise InputError(
            f"{key}: {dotted_name(made)} isn't built with _partial_=true, expected an nn.Module; leave it out"
        )
    raise InputError(f"{key}: {dotted_name(type(loss))} isn't a subclass of nn.Module")


def check_forward(loss: nn.Module) -> None:
    """Check that the ``forward`` of a loss takes embeddings and labels."""
    if type(loss).forward is nn.Module.forward:
        raise InputError(f"loss: {dotted_name(type(loss))} has no forward, expected forward(embeddings, labels)")
    arguments = {"indices": None} if getattr(loss, "needs_indices", False) else {}
    parameters = signature(loss.forward)
    try:
        parameters.bind(None, None, **arguments)
    except TypeError as error:
        expected = ", ".join(("embeddings", "labels", *arguments))
        raise InputError(
            f"loss: {dotted_name(type(loss))}.forward takes {parameters}, expected ({expected})"
        ) from error


def check_value(loss: nn.Module, value: Any) -> None:
    """Check, without waiting for a GPU, that a loss returned a scalar tensor."""
    if not isinstance(value, Tensor):
        described = "None" if value is None else f"a {type(value).__name__}"
        raise InputError(f"loss: {dotted_name(type(loss))}.forward returned {described}, {VALUE}")
    if value.ndim:
        raise InputError(
            f"loss: {dotted_name(type(loss))}.forward returned a tensor of shape {(*value.shape,)}, {VALUE}"
        )


def check_gradient(loss: nn.Module, value: Tensor) -> None:
    """Check, without waiting for a GPU, that the value of a loss has a gradient."""
    if not value.requires_grad:
        described = "without a gradient" if value.is_floating_point() else f"of whole numbers ({value.dtype})"
        raise InputError(f"loss: {dotted_name(type(loss))}.forward returned a tensor {described}, {VALUE}")
