from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError


class Arrival(Protocol):
    """A tensor on its way from a device to the CPU."""

    def has_arrived(self) -> bool:
        """Whether `value` gives it without waiting."""

    def value(self) -> Tensor:
        """Wait for the tensor, which is on the CPU then."""


class CudaArrival:
    """A copy from a GPU that the CPU doesn't wait for; it happens after the work that was given to the GPU before."""

    def __init__(self, source: Tensor) -> None:
        self._copy = source.to("cpu", non_blocking=True)  # torch makes it in pinned memory, as only that can be late
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(source.device))

    def has_arrived(self) -> bool:
        """Whether the GPU has come to the copy."""
        return bool(self._event.query())

    def value(self) -> Tensor:
        """Wait for the GPU to come to the copy."""
        self._event.synchronize()
        return self._copy


class DirectArrival:
    """A tensor on the CPU, or a copy that is waited for, from devices that have no other."""

    def __init__(self, source: Tensor) -> None:
        self._copy = source.cpu()

    def has_arrived(self) -> bool:
        """It has."""
        return True

    def value(self) -> Tensor:
        """The tensor on the CPU."""
        return self._copy


def send_to_cpu(source: Tensor) -> Arrival:
    """Start a copy of a tensor to the CPU, which on a GPU doesn't wait for the work before it."""
    return CudaArrival(source) if source.is_cuda else DirectArrival(source)


@dataclass(frozen=True)
class _Step:
    """What one step says: for each head (H, 2) whether its loss and its embeddings are finite."""

    number: int
    losses: Mapping[str, str]  # the loss's class by head
    finite: Arrival


class DivergenceCheck:
    """Stops a training whose loss became NaN or infinite, without letting a step wait for the GPU.

    `note` asks the device whether a step's losses are finite and reads the answers that have come: on a CPU the
    step's own, on a GPU those of earlier steps. `settle` waits for the others, and is called before anything that
    outlives the step: a checkpoint, a validation, the end of the training. So no checkpoint holds what came after a
    loss that wasn't finite.

    Args:
        send: starts the copy of a tensor to the CPU.
    """

    def __init__(self, send: Callable[[Tensor], Arrival] = send_to_cpu) -> None:
        self._send = send
        self._open: deque[_Step] = deque()

    @torch.no_grad()
    def note(
        self, step: int, losses: nn.ModuleDict, embeddings: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> None:
        """Note a step's embeddings (B, D) and loss by head, and read the answers that have come.

        Raises:
            InputError: if the loss of a head was not finite in a step whose answer has come.
        """
        finite = [
            torch.stack([torch.isfinite(values[head]), torch.isfinite(embeddings[head]).all()]) for head in values
        ]
        names = {head: type(losses[head]).__name__ for head in values}
        self._open.append(_Step(step, names, self._send(torch.stack(finite))))
        while self._open and self._open[0].finite.has_arrived():
            _check(self._open.popleft())

    def settle(self) -> None:
        """Wait for all answers.

        Raises:
            InputError: if the loss of a head was not finite in any step so far.
        """
        while self._open:
            _check(self._open.popleft())


def _check(step: _Step) -> None:
    for (head, loss), (is_loss_finite, are_embeddings_finite) in zip(
        step.losses.items(), step.finite.value().tolist(), strict=True
    ):
        if not is_loss_finite:
            raise diverged(step.number, "its loss" if are_embeddings_finite else "embeddings", head, loss)


def diverged(step: int, what: str, head: str, loss: str) -> InputError:
    """The error of a training that diverged: in which step, what of which head, and under which loss."""
    return InputError(
        f"step {step}: {what} of head {head} became NaN or infinite under {loss}; the last good checkpoint is kept, a "
        "lower optimizer.lr may help"
    )
