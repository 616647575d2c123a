from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError


class CpuCopy(Protocol):
    """A copy of a tensor to the CPU, which may still be under way."""

    def is_done(self) -> bool:
        """Return whether `wait` returns at once."""

    def wait(self) -> Tensor:
        """Wait until the copy is done, and return it."""


class CudaCopy:
    """A copy from a GPU, which the GPU makes after all work that it got before; the CPU goes on meanwhile."""

    def __init__(self, source: Tensor) -> None:
        self._copy = source.to("cpu", non_blocking=True)  # PyTorch copies to pinned memory, else the CPU would wait.
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(source.device))

    def is_done(self) -> bool:
        """Return whether the GPU has made the copy."""
        return bool(self._event.query())

    def wait(self) -> Tensor:
        """Wait until the GPU has made the copy, and return it."""
        self._event.synchronize()
        return self._copy


class DirectCopy:
    """A tensor that is on the CPU already, or a copy that was waited for, from a device without asynchronous copies."""

    def __init__(self, source: Tensor) -> None:
        self._copy = source.cpu()

    def is_done(self) -> bool:
        """Return True, as the copy was made when this object was."""
        return True

    def wait(self) -> Tensor:
        """Return the tensor on the CPU."""
        return self._copy


def start_copy(source: Tensor) -> CpuCopy:
    """Start to copy a tensor to the CPU, without waiting for a GPU."""
    return CudaCopy(source) if source.is_cuda else DirectCopy(source)


@dataclass(frozen=True)
class _StepFiniteness:
    """Whether the losses and the embeddings of one step are finite.

    Args:
        step: index of the step.
        loss_names: name of the class of the loss by head.
        is_finite: (H, 2) bool: whether the loss of each head is finite, and whether all of its embeddings are.
    """

    step: int
    loss_names: Mapping[str, str]
    is_finite: CpuCopy


class DivergenceCheck:
    """Stops a training whose loss became NaN or infinite, without making a step wait for the GPU.

    `add_step` computes on the device whether the losses of a step are finite, and reads the results that are on the
    CPU by then: on a GPU those of earlier steps. `wait_for_all` waits for the other results. It is called before
    everything that outlives the step: a checkpoint, a validation, the end of the training. So no checkpoint holds
    weights that were trained by a loss that wasn't finite.

    Args:
        start_copy: function that starts to copy a tensor to the CPU.
    """

    def __init__(self, start_copy: Callable[[Tensor], CpuCopy] = start_copy) -> None:
        self._start_copy = start_copy
        self._unread_steps: deque[_StepFiniteness] = deque()

    @torch.no_grad()
    def add_step(
        self, step: int, losses: nn.ModuleDict, embeddings: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> None:
        """Check a step, and read the results that are on the CPU.

        Args:
            step: index of the step.
            losses: losses by head.
            embeddings: embeddings (B, D) by head.
            values: value of the loss by head.

        Raises:
            InputError: if the loss of a head was not finite in a step whose result was read.
        """
        is_finite = [
            torch.stack([torch.isfinite(values[head]), torch.isfinite(embeddings[head]).all()]) for head in values
        ]
        loss_names = {head: type(losses[head]).__name__ for head in values}
        self._unread_steps.append(_StepFiniteness(step, loss_names, self._start_copy(torch.stack(is_finite))))
        while self._unread_steps and self._unread_steps[0].is_finite.is_done():
            _check(self._unread_steps.popleft())

    def wait_for_all(self) -> None:
        """Wait for the results of all steps, and read them.

        Raises:
            InputError: if the loss of a head was not finite in one of the steps.
        """
        while self._unread_steps:
            _check(self._unread_steps.popleft())


def _check(finiteness: _StepFiniteness) -> None:
    for (head, loss_name), (is_loss_finite, are_embeddings_finite) in zip(
        finiteness.loss_names.items(), finiteness.is_finite.wait().tolist(), strict=True
    ):
        if not is_loss_finite:
            values = "loss" if are_embeddings_finite else "embeddings"
            raise _divergence_error(finiteness.step, values, head, loss_name)


def check_embeddings(step: int, losses: nn.ModuleDict, embeddings: Mapping[str, Tensor]) -> None:
    """Check the embeddings of a validation.

    Args:
        step: number of optimizer steps before the validation.
        losses: losses by head.
        embeddings: embeddings (N, D) by name; only those of the heads are checked.

    Raises:
        InputError: if the embeddings of a head are not finite.
    """
    for head, loss in losses.items():
        if not torch.isfinite(embeddings[head]).all():
            raise _divergence_error(step, "embeddings", head, type(loss).__name__)


def _divergence_error(step: int, values: str, head: str, loss_name: str) -> InputError:
    """Make the error of a training that diverged.

    Args:
        step: index of the step.
        values: values that are not finite: "loss" or "embeddings".
        head: name of the head that they belong to.
        loss_name: name of the class of the head's loss.
    """
    return InputError(
        f"step {step}: the {values} of head {head} became NaN or infinite under {loss_name}; the last good checkpoint "
        "is kept, a lower optimizer.lr may help"
    )
