"""What a backbone and a head have to be, and what a head has to return: a mistake in a user's own is one line."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.ops.configuration.dotted_names import dotted_name
from dml.ops.errors import InputError


def check_backbone(backbone: object) -> None:
    """Check that a backbone is a `Backbone`, which scales the pixels and taps the maps.

    Raises:
        InputError: if it is something else, such as the network alone.
    """
    if not isinstance(backbone, Backbone):
        raise InputError(
            f"model.backbone: {dotted_name(backbone)} isn't a dml.models.backbone.Backbone; "
            "return Backbone(network, mean=..., std=...)"
        )


def build_head(name: str, build: Callable[..., Any], shape: tuple[int, int, int], embed_dim: int) -> nn.Module:
    """Build the head of this name from the shape (C, h, w) of a tapped map and the size of the embedding.

    Raises:
        InputError: if the result isn't a module.
    """
    head = build(shape, embed_dim)
    if not isinstance(head, nn.Module):
        raise InputError(f"model.head.{name}: {dotted_name(build)} returned {_describe(head)}, expected an nn.Module")
    return head


@torch.no_grad()
def check_embeddings_of_heads(heads: nn.ModuleDict, maps: Mapping[str, Tensor], embed_dims: Mapping[str, int]) -> None:
    """Check that each head makes one embedding of the expected size for a map.

    Args:
        heads: heads by name.
        maps: tapped map (1, C, h, w), or tokens (1, T, C), of one image by head.
        embed_dims: sizes of the embeddings by head.

    Raises:
        InputError: if a head returns anything but a tensor (1, D).
    """
    heads.eval()
    for name, head in heads.items():
        embedding, shape = head(maps[name]), (1, embed_dims[name])
        if not isinstance(embedding, Tensor) or embedding.shape != shape:
            raise InputError(
                f"model.head.{name}: {dotted_name(head)} returned {_describe(embedding)} for one image, expected a "
                f"tensor of shape {shape}: model.embed_dim={embed_dims[name]}"
            )
    heads.train()


def _describe(value: Any) -> str:
    """Return the shape of a tensor, or the type of another value."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {(*value.shape,)}"
    return "None" if value is None else f"a {type(value).__name__}"
