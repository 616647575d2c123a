"""Gradient caching: large batches in the memory of small ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dml.runtime.errors import InputError

Gradients = tuple[Tensor | None, ...]


def embed_in_chunks(model: nn.Module, images: Tensor, size: int) -> dict[str, Tensor]:
    """Embed images with gradients -> embeddings (B, D) by name; only one chunk of images has a graph at a time.

    This is gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    2021). First the chunks are embedded one after the other without a graph, and the loss is computed from all
    embeddings. Then, inside the backward pass of the loss, each chunk is embedded again with a graph, with the same
    random numbers (dropout) and the same autocast. So the gradient of each parameter arrives once and complete, which
    DistributedDataParallel relies on, and equals that of the whole batch up to the rounding of sums.
    `torch.utils.checkpoint` of each chunk takes twice the memory of one chunk.

    Args:
        model: network that embeds images (B, 3, H, W) -> embeddings (B, D) by name. The embeddings of an image must not
            depend on the other images.
        images: images (B, 3, H, W).
        size: number of images in a chunk.
    """
    if len(images) <= size:
        return cast(dict[str, Tensor], model(images))
    device, chunks = images.device.type, torch.split(images, size)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Without a cache: the second pass must not get the cast weights of the first, which have no graph.
    autocast = partial(
        torch.autocast,
        device,
        enabled=torch.is_autocast_enabled(device),
        dtype=torch.get_autocast_dtype(device),
        cache_enabled=False,
    )
    same_random_numbers = _record_random_state(images)

    def replay(gradients: Sequence[Tensor]) -> Gradients:
        gradients_by_chunk = zip(*(torch.split(gradient, size) for gradient in gradients), strict=True)
        with torch.enable_grad(), same_random_numbers(), autocast():
            total: Gradients = (None,) * len(parameters)
            for chunk, chunk_gradients in zip(chunks, gradients_by_chunk, strict=True):
                outputs = [*model(chunk).values()]
                total = _add(total, torch.autograd.grad(outputs, parameters, chunk_gradients, allow_unused=True))
        return total

    with torch.no_grad(), autocast():
        parts = [model(chunk) for chunk in chunks]
    embeddings = {head: torch.cat([part[head] for part in parts]) for head in parts[0]}
    with_graph: Any = _ReplayedEmbeddings.apply(replay, (*embeddings.values(),), *parameters)
    return dict(zip(embeddings, with_graph, strict=True))


class _ReplayedEmbeddings(torch.autograd.Function):
    """Gives embeddings without a graph a backward pass: ``replay`` computes the gradients by the parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        replay: Callable[[Sequence[Tensor]], Gradients],
        embeddings: tuple[Tensor, ...],
        *parameters: nn.Parameter,  # noqa: ARG004
    ) -> tuple[Tensor, ...]:
        ctx.replay = replay
        return embeddings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        return None, None, *ctx.replay(gradients)


def _add(total: Gradients, more: Gradients) -> Gradients:
    """Add gradients, where None stands for zero."""
    return tuple(b if a is None else a if b is None else a + b for a, b in zip(total, more, strict=True))


def _record_random_state(images: Tensor) -> Callable[[], Any]:
    """Return a context in which torch draws the numbers that follow now; its end restores the state of before it."""
    backends: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.mps}
    generators = [torch.random, *(backends[kind] for kind in backends if kind == images.device.type)]
    states = [generator.get_rng_state() for generator in generators]

    @contextmanager
    def restored() -> Iterator[None]:
        before = [generator.get_rng_state() for generator in generators]
        for generator, state in zip(generators, states, strict=True):
            generator.set_rng_state(state)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_rng_state(state)

    return restored


def check_chunk_size(model: nn.Module, size: int | None) -> None:
    """Check that a model doesn't normalize over the batch: the embeddings of its chunks would be others."""
    if size is None:
        return
    for name, module in model.named_modules():
        buffers = [buffer for buffer, _ in module.named_buffers(recurse=False)]
        has_statistics = any(buffer.startswith("running_") for buffer in buffers)
        if module.training and (has_statistics or isinstance(module, nn.modules.batchnorm._BatchNorm)):
            is_frozen_by = "model.backbone.freeze_batchnorm=all freezes it"
            remedy = is_frozen_by if "backbone." in name else "a PoolHead in model.head has none"
            kind = getattr(module, "unfolded", type(module)).__name__  # what a folded normalization was made from
            raise InputError(
                f"training.gradient_cache={size}: {name} ({kind}) normalizes over the images that it gets at "
                f"once, so chunks would change the embeddings; {remedy}"
            )
