"""What a loss has to be, and what it has to return: a mistake in a loss of the user's own is one line."""

from functools import partial
from inspect import isroutine, signature
from typing import Any

from torch import Tensor, nn

from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError


class Loss(nn.Module):
    """A loss whose ``repr`` names its parameters: those of its ``__init__`` that it keeps as attributes."""

    needs_classes: bool = False
    """Whether an image has to have a single label; other losses compare sets of labels by `dml.ops.pairs.related`."""

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


VALUE = "expected a scalar tensor with a gradient"


def check_takes_label_sets(loss: nn.Module) -> None:
    """Make sure that a loss, and each in it, can be computed of images that have several labels."""
    for part in loss.modules():
        if getattr(part, "needs_classes", part is loss and not isinstance(loss, Loss)):
            raise InputError(
                f"loss: {type(part).__name__} needs a single label of each image; with several, choose a loss of pairs "
                "such as loss=rll, or dataset.reader.separator=null, with which each combination is a class"
            )


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
