from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dml.runtime.errors import InputError


class CpuCopy:
    """A copy of a tensor to the CPU. A GPU makes it after all work that it got before; the CPU goes on meanwhile."""

    def __init__(self, source: Tensor) -> None:
        self._event: Any = None
        self._copy = source.to("cpu", non_blocking=source.is_cuda)  # to pinned memory, else the CPU would wait
        if source.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(source.device))

    def is_done(self) -> bool:
        """Return whether `wait` returns at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> Tensor:
        """Wait until the copy is done, and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


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

    def __init__(self, start_copy: Callable[[Tensor], CpuCopy] = CpuCopy) -> None:
        self._start_copy = start_copy
        self._unread_steps: deque[_StepFiniteness] = deque()

    @torch.no_grad()
    def add_step(
        self, step: int, losses: nn.ModuleDict, embeddings: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> None:
        """Check embeddings (B, D) and values of the losses of a step by head, and read the results that are on the CPU.

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
        """Wait for the results of all steps, and read them."""
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
    """Check the embeddings (N, D) of each head in a validation; others aren't checked."""
    for head, loss in losses.items():
        if not torch.isfinite(embeddings[head]).all():
            raise _divergence_error(step, "embeddings", head, type(loss).__name__)


def _divergence_error(step: int, values: str, head: str, loss_name: str) -> InputError:
    return InputError(
        f"step {step}: the {values} of head {head} became NaN or infinite under {loss_name}; the last good checkpoint "
        "is kept, a lower optimizer.lr may help"
    )
