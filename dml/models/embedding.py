"""A backbone with its heads, and what these have to be: a mistake in a user's own is one line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.backbone import Backbone, ParameterList
from dml.models.heads import TwoStepHead
from dml.runtime.configuration import dotted_name
from dml.runtime.errors import InputError, check_choice, check_whole

Head = Callable[[tuple[int, int, int], int], nn.Module]
"""Builds a head from the shape (C, h, w) of a tapped map, or (C, T, 1) of T tokens, and the size of the embedding."""

SIZE_ERRORS = (AssertionError, RuntimeError, ValueError)
"""The errors that networks raise for images of a size that they can't take."""


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
        check_choice("model.concatenation", concatenation, ("normalized", "raw"))
        self.backbone = backbone
        self.normalize = normalize
        self.concatenation = concatenation
        self.pretraining = {str(key): value for key, value in (pretraining or {}).items()}
        self.image_size = image_size
        sizes = embed_dim if isinstance(embed_dim, Mapping) else dict.fromkeys(heads, embed_dim)
        for name in heads:
            check_whole(f"model.embed_dim.{name}", sizes.get(name), least=1)
        self.embed_dims = {name: sizes[name] for name in heads}
        self.chosen_heads = (*heads,)
        taps = {name: taps[name] for name in heads}
        backbone.tap(taps)
        maps = self._tap_blank()
        for name, path in taps.items():
            if name not in maps or maps[name].ndim != (3 if path == "tokens" else 4):
                raise InputError(
                    f"model.taps.{name}={path}: this module's output isn't a map (B, C, h, w); tap another one"
                )
        for name in self._list_unreached(maps):  # DDP would wait for their gradients
            backbone.network.get_parameter(name).requires_grad_(False)
        self.heads = nn.ModuleDict()
        for name, path in taps.items():
            self.heads[name] = _build_head(name, head[name], path, maps[name], self.embed_dims[name])

    @torch.enable_grad()
    def _tap_blank(self) -> dict[str, Tensor]:
        """Compute the maps of a black image, with a gradient; a transformer made for another size is fitted to it."""
        was_training = self.backbone.training
        self.backbone.eval()
        try:
            return self.backbone.run_blank(self.image_size)[1]
        except SIZE_ERRORS as error:
            raise InputError(
                f"transform.size={self.image_size}: {type(self.backbone.network).__name__} can't take images of this "
                f"size ({' '.join(str(error).split())})"
            ) from error
        finally:
            self.backbone.train(was_training)

    @torch.enable_grad()
    def _list_unreached(self, maps: Mapping[str, Tensor]) -> list[str]:
        """List the names of the backbone's trained parameters that no tapped map depends on."""
        named = {name: p for name, p in self.backbone.network.named_parameters() if p.requires_grad}
        total = torch.stack([tapped_map.sum() for tapped_map in maps.values()]).sum()
        if not total.requires_grad:
            return [*named]
        gradients = torch.autograd.grad(total, [*named.values()], allow_unused=True)
        return [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]

    def find_unreached(self) -> list[str]:
        """Return the names of the backbone's trained parameters that no head depends on."""
        return self._list_unreached(self._tap_blank())

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


@torch.no_grad()
def _build_head(name: str, build: Head, path: str, tapped: Tensor, embed_dim: int) -> nn.Module:
    """Build the head of a tapped map (1, C, h, w) or tokens (1, T, C), and check that it makes an embedding (1, D)."""
    is_map = tapped.ndim == 4
    head = build((*tapped.shape[1:],) if is_map else (tapped.shape[2], tapped.shape[1], 1), embed_dim)
    if bool(getattr(head, "takes_tokens", False)) == is_map:
        wanted = "tokens; tap tokens" if is_map else "a map; tap patches or a stage"
        raise InputError(f"model.taps.{name}={path}: {type(head).__name__} embeds {wanted}")
    embedding, shape = head.eval()(tapped.detach()), (1, embed_dim)
    if not isinstance(embedding, Tensor) or embedding.shape != shape:
        kind = f"tensor of shape {(*embedding.shape,)}" if isinstance(embedding, Tensor) else type(embedding).__name__
        raise InputError(
            f"model.head.{name}: {dotted_name(head)} returned a {kind} for one image, expected a tensor of shape "
            f"{shape}: model.embed_dim={embed_dim}"
        )
    return head.train()


def _is_pooling(head: nn.Module) -> bool:
    """Return whether a head is its pool and its embedding, and no subclass of one computes anything else."""
    return isinstance(head, TwoStepHead) and type(head).forward is TwoStepHead.forward


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
