"""Gradient caching: large batches in the memory of small ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from dml.ops.errors import InputError

Gradients = tuple[Tensor | None, ...]


def in_chunks(model: nn.Module, images: Tensor, size: int | None) -> dict[str, Tensor]:
    """What the model gives for all images, with gradients, while the graph of ``size`` images is held at a time.

    Gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021):
    the images are embedded chunk by chunk without a graph; the loss is taken of all embeddings; then each chunk is
    embedded once more, with a graph, and carries the loss's gradient by its embeddings on to the parameters. That
    second pass is part of the graph, so it happens within the loss's ordinary backward pass, and whoever waits for
    a parameter's gradient, DistributedDataParallel for one, gets it once and whole.

    The second pass draws the random numbers of the first (dropout) under the same autocast. The gradients are those
    of the whole batch up to the rounding of sums. Random numbers are drawn chunk by chunk: another size draws others.

    Why not `torch.utils.checkpoint` for each chunk: the gradients are the same, but it keeps a graph of all chunks,
    without tensors, which splits the C library's heap so that the process takes twice the memory of one chunk.

    Args:
        model: images (B, 3, H, W) -> embeddings (B, D) by name, each a function of its own image alone.
        images: (B, 3, H, W).
        size: of a chunk; None embeds the batch at once, as if this function weren't there.
    """
    if size is None or len(images) <= size:
        whole: dict[str, Tensor] = model(images)
        return whole
    device, chunks = images.device.type, torch.split(images, size)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # no cache: what the first pass casts has no graph and must not be found by the second
    autocast = partial(
        torch.autocast,
        device,
        enabled=torch.is_autocast_enabled(device),
        dtype=torch.get_autocast_dtype(device),
        cache_enabled=False,
    )
    random_numbers = _random_numbers(images)

    def replay(gradients: Sequence[Tensor]) -> Gradients:
        cached = zip(*(torch.split(gradient, size) for gradient in gradients), strict=True)
        with torch.enable_grad(), random_numbers(), autocast():
            total: Gradients = (None,) * len(parameters)
            for chunk, own in zip(chunks, cached, strict=True):
                embeddings = [*model(chunk).values()]
                total = _add(total, torch.autograd.grad(embeddings, parameters, own, allow_unused=True))
        return total

    with torch.no_grad(), autocast():
        parts = [model(chunk) for chunk in chunks]
    embeddings = {head: torch.cat([part[head] for part in parts]) for head in parts[0]}
    with_graph: Any = _Replayed.apply(replay, (*embeddings.values(),), *parameters)
    return dict(zip(embeddings, with_graph, strict=True))


class _Replayed(torch.autograd.Function):
    """Embeddings that have no graph, as they are; ``replay`` makes the parameters' gradients of theirs."""

    @staticmethod
    def forward(
        ctx: Any,
        replay: Callable[[Sequence[Tensor]], Gradients],
        embeddings: tuple[Tensor, ...],
        *parameters: nn.Parameter,  # noqa: ARG004
    ) -> tuple[Tensor, ...]:
        """The embeddings."""
        ctx.replay = replay
        return embeddings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        """Gradients by the embeddings -> by the parameters."""
        return None, None, *ctx.replay(gradients)


def _add(total: Gradients, more: Gradients) -> Gradients:
    return tuple(b if a is None else a if b is None else a + b for a, b in zip(total, more, strict=True))


def _random_numbers(images: Tensor) -> Callable[[], Any]:
    """Within the result torch draws once more what it draws from now on, and afterwards as if nothing had happened."""
    state, (devices, states) = torch.get_rng_state(), get_device_states(images)

    @contextmanager
    def again() -> Iterator[None]:
        with torch.random.fork_rng(devices, device_type=images.device.type):
            torch.set_rng_state(state)
            set_device_states(devices, states)
            yield

    return again


def check_chunks(model: nn.Module, size: int | None) -> None:
    """Makes sure that the model may be given a batch in chunks.

    Raises:
        InputError: if the size is no number of images, or if the model normalises over the batch: each chunk would
            then be normalised by itself, and the running statistics moved twice.
    """
    if size is None:
        return
    if not isinstance(size, int) or size < 1:
        raise InputError(f"gradient_cache={size}: a number of images, at least 1, or null")
    for name, module in model.named_modules():
        if module.training and _normalizes_over_batch(module):
            frozen, none = "model.backbone.freeze_batchnorm=all freezes it", "a PoolHead in model.head has none"
            remedy = frozen if "backbone." in name else none
            raise InputError(
                f"gradient_cache={size}: {name} ({type(module).__name__}) normalises over the images that it gets at "
                f"once, so chunks would change the embeddings; {remedy}"
            )


def _normalizes_over_batch(module: nn.Module) -> bool:
    """Batch normalisation, or any other layer with running statistics."""
    buffers = [name for name, _ in module.named_buffers(recurse=False)]
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or any(name.startswith("running_") for name in buffers)
