"""A backbone with its heads, and what these have to be: a mistake in a user's own is one line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.backbone import Backbone, ParameterList
from dml.models.heads import TwoStepHead
from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError

Head = Callable[[tuple[int, int, int], int], nn.Module]
"""Builds a head from the shape (C, h, w) of a tapped map, or (C, T, 1) of T tokens, and the size of the embedding."""

SIZE_ERRORS = (AssertionError, RuntimeError, ValueError)
"""The errors that networks raise for images of a size that they can't take."""

USUAL_SIZES = (224, 256, 299, 384, 448, 512, 32, 64, 128)
"""Sides of images in pixels, at least one of which a network without a mistake takes."""


class EmbeddingModel(nn.Module):
    """A backbone with one or more embedding heads on maps of different depths, such as RLL's L, M and H.

    ``chosen_heads`` make the embedding of an image: all, unless a training with ``choose_heads`` chose some.

    >>> from dml.models.heads import PoolHead
    >>> from dml.models.small_cnn import small_cnn
    >>> model = EmbeddingModel(
    ...     small_cnn(), taps={"H": "pool2"}, head={"H": PoolHead}, heads=["H"], embed_dim=8, image_size=28
    ... )
    >>> model(torch.zeros(2, 3, 28, 28))["H"].shape
    torch.Size([2, 8])

    Args:
        taps: path of the tapped submodule for each available head; None taps the last three stages of the network for
            heads L, M and H.
        head: function for each available head that builds it from the map's shape (C, h, w) and the embedding size.
        heads: names of the heads to use, from those in ``taps`` and ``head``.
        embed_dim: size of the embeddings: one number for all heads, or one for each head by name.
        image_size: side of the images in pixels, which determines the shapes of the maps.
        normalize: whether to L2-normalize the embeddings in training too; in evaluation they always are.
        concatenation: how evaluation concatenates the heads' embeddings. "normalized" L2-normalizes each of them
            first, so that all heads weigh the same; "raw" normalizes the concatenation alone, as RLL's release does.
        pretraining: facts about the weights of the backbone, such as the license and the data that they were trained
            on. The configurations of optimizer and trainer read ``lr`` and ``gradient_clip_val`` in it.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        taps: Mapping[str, str] | None,
        head: Mapping[str, Head],
        heads: Sequence[str] = ("L", "M", "H"),
        embed_dim: int | Mapping[str, int] = 512,
        image_size: int = 224,
        normalize: bool = False,
        concatenation: str = "normalized",
        pretraining: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):  # it scales the pixels and taps the maps
            raise InputError(
                f"model.backbone: {dotted_name(backbone)} isn't a dml.models.backbone.Backbone; "
                "return Backbone(network, mean=..., std=...)"
            )
        if taps is None:
            if len(backbone.stages) < 3:
                raise InputError("model.taps=null: this network doesn't name its stages; give {L: ..., M: ..., H: ...}")
            taps = dict(zip("LMH", backbone.stages[-3:], strict=True))
        unknown = [name for name in heads if name not in taps or name not in head]
        if unknown or not heads or len(set(heads)) < len(heads):
            raise InputError(f"model.heads={list(heads)}: choose among {', '.join(taps)}, each once")
        if concatenation not in ("normalized", "raw"):
            raise InputError(f"model.concatenation={concatenation}: must be normalized or raw")
        self.backbone = backbone
        self.normalize = normalize
        self.concatenation = concatenation
        self.pretraining = {str(key): value for key, value in (pretraining or {}).items()}
        self.image_size = image_size
        self.embed_dims = {name: _embed_dim(embed_dim, name) for name in heads}
        self.chosen_heads = (*heads,)
        backbone.tap({name: taps[name] for name in heads})
        maps = self._freeze_unreached({name: taps[name] for name in heads}, image_size)
        self.heads = nn.ModuleDict(
            {name: _build_head(name, head[name], _head_shape(maps[name]), self.embed_dims[name]) for name in heads}
        )
        _check_tokens({name: taps[name] for name in heads}, self.heads)
        _check_embeddings(self.heads, maps, self.embed_dims)

    @torch.enable_grad()
    def _freeze_unreached(self, taps: Mapping[str, str], image_size: int) -> dict[str, Tensor]:
        """Freeze parameters that no tapped map needs (DDP would wait for their gradients) -> maps of a black image."""
        self.backbone.eval()
        maps = self._embed_blank(image_size)
        for name, path in taps.items():
            if name not in maps or maps[name].ndim != (3 if path == "tokens" else 4):
                raise InputError(
                    f"model.taps.{name}={path}: this module's output isn't a map (B, C, h, w); tap another one"
                )
        for name in self._list_unreached(maps):
            self.backbone.network.get_parameter(name).requires_grad_(False)
        self.backbone.train()
        return {name: tapped.detach() for name, tapped in maps.items()}

    def _list_unreached(self, maps: Mapping[str, Tensor]) -> list[str]:
        named = {name: p for name, p in self.backbone.network.named_parameters() if p.requires_grad}
        total = torch.stack([tapped_map.sum() for tapped_map in maps.values()]).sum()
        if not total.requires_grad:
            return [*named]
        gradients = torch.autograd.grad(total, [*named.values()], allow_unused=True)
        return [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]

    @torch.enable_grad()
    def find_unreached(self) -> list[str]:
        """Return the names of the backbone's trained parameters that no head depends on."""
        was_training = self.backbone.training
        self.backbone.eval()
        unreached = self._list_unreached(self._embed_blank(self.image_size))
        self.backbone.train(was_training)
        return unreached

    def _embed_blank(self, image_size: int) -> dict[str, Tensor]:
        """Compute the maps of a black image; a transformer made for another size is fitted to this one."""
        try:
            return self.backbone.run_blank(image_size)[1]
        except SIZE_ERRORS as error:
            if not any(map(self._takes_size, USUAL_SIZES)):
                raise
            raise InputError(
                f"transform.size={image_size}: {type(self.backbone.network).__name__} can't take images of this size "
                f"({' '.join(str(error).split())})"
            ) from error

    def _takes_size(self, image_size: int) -> bool:
        try:
            self.backbone.run_blank(image_size)
        except SIZE_ERRORS:
            return False
        return True

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Compute each head's embeddings (B, D) float32 for the losses from RGB images (B, 3, H, W), 0-255."""
        _, maps = self.backbone(images)
        return self._finish({name: head(maps[name]) for name, head in self.heads.items()})

    def pool_maps(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute what the trained part of each head takes: the result of a `TwoStepHead`'s pool, or the tapped map."""
        return {
            name: head.pool(maps[name]) if _is_pooling(head) else maps[name]  # type: ignore[operator]
            for name, head in self.heads.items()
        }

    def embed_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute each head's embeddings (B, D) as `forward` does, from the head inputs of `pool_maps`."""
        return self._finish(
            {
                name: head.embed(inputs[name]) if _is_pooling(head) else head(inputs[name])  # type: ignore[operator]
                for name, head in self.heads.items()
            }
        )

    def _finish(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        embeddings = {name: rows.float() for name, rows in embeddings.items()}
        if self.normalize:
            embeddings = {name: F.normalize(rows, dim=1) for name, rows in embeddings.items()}
        return embeddings

    @property
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the groups "backbone" and "heads", for which an optimizer may set learning rates."""
        return {"backbone": self.backbone.layered_parameters, "heads": ParameterList(self.heads)}

    def concatenate(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the embeddings (B, D) of some heads to L2-normalized embeddings (B, sum of D) for evaluation."""
        parts = list(embeddings.values())
        if self.concatenation == "normalized" and len(parts) > 1:
            parts = [F.normalize(part, dim=1) for part in parts]
        return F.normalize(torch.cat(parts, dim=1), dim=1)

    def raw_features(self, images: Tensor) -> Tensor:
        """Compute the pooled features (B, F) of the backbone, without any head, of images (B, 3, H, W)."""
        features: Tensor = self.backbone(images)[0].flatten(1).float()
        return features


def _build_head(name: str, build: Callable[..., Any], shape: tuple[int, int, int], embed_dim: int) -> nn.Module:
    """Build the head of this name from the shape (C, h, w) of a tapped map and the size of the embedding."""
    head = build(shape, embed_dim)
    if not isinstance(head, nn.Module):
        raise InputError(f"model.head.{name}: {dotted_name(build)} returned {_describe(head)}, expected an nn.Module")
    return head


@torch.no_grad()
def _check_embeddings(heads: nn.ModuleDict, maps: Mapping[str, Tensor], embed_dims: Mapping[str, int]) -> None:
    """Check that each head makes an embedding of its size (1, D) for a map (1, C, h, w), or tokens (1, T, C)."""
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
    if isinstance(value, Tensor):
        return f"a tensor of shape {(*value.shape,)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _embed_dim(embed_dim: int | Mapping[str, int], name: str) -> int:
    """Return the embedding size of the named head, or raise InputError if it isn't a positive integer."""
    size = embed_dim.get(name) if isinstance(embed_dim, Mapping) else embed_dim
    if not isinstance(size, int) or size < 1:
        raise InputError(f"model.embed_dim={embed_dim}: head {name} needs an integer size of at least 1")
    return size


def _is_pooling(head: nn.Module) -> bool:
    """Return whether a head is its pool and its embedding, and no subclass of one computes anything else."""
    return isinstance(head, TwoStepHead) and type(head).forward is TwoStepHead.forward


def _head_shape(tapped: Tensor) -> tuple[int, int, int]:
    """Return the shape that a head is built for: (C, h, w) of a map (1, C, h, w), (C, T, 1) of tokens (1, T, C)."""
    if tapped.ndim == 3:
        return tapped.shape[2], tapped.shape[1], 1
    return tapped.shape[1], tapped.shape[2], tapped.shape[3]


def _check_tokens(taps: Mapping[str, str], heads: nn.ModuleDict) -> None:
    for name, head in heads.items():
        takes_tokens = bool(getattr(head, "takes_tokens", False))
        if takes_tokens and taps[name] != "tokens":
            raise InputError(f"model.taps.{name}={taps[name]}: {type(head).__name__} embeds tokens; tap tokens")
        if not takes_tokens and taps[name] == "tokens":
            raise InputError(f"model.taps.{name}=tokens: {type(head).__name__} embeds a map; tap patches or a stage")


def embed_views(embed: Callable[[Tensor], dict[str, Tensor]], images: Tensor) -> dict[str, Tensor]:
    """Embed the V views of each image (B, V, 3, h, w), one at a time, and average them -> embeddings (B, D) by name.

    The average has the direction of the mean of the L2-normalized embeddings of the views, and the mean of their
    lengths. So it is that mean once it is normalized, and where raw embeddings are concatenated, a head with longer
    embeddings keeps its larger weight. According to Song et al. ("Deep metric learning via facility location", 2017),
    the figures of N-pair rest on the averaged embeddings of ten crops, which were random.
    """
    views = [embed(view) for view in images.unbind(1)]
    averaged = {}
    for name in views[0]:
        stacked = torch.stack([view[name] for view in views])
        direction = F.normalize(F.normalize(stacked, dim=2).mean(dim=0), dim=1)
        lengths: Tensor = torch.linalg.vector_norm(stacked, dim=2)
        averaged[name] = direction * lengths.mean(dim=0)[:, None]
    return averaged
