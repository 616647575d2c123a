from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.ops.errors import InputError

Head = Callable[[tuple[int, int, int], int], nn.Module]


class EmbeddingModel(nn.Module):
    """A backbone with embedding heads at some of its depths (RLL's L, M and H).

    Args:
        backbone: the network to tap.
        taps: for each head that can be had the name of the submodule whose output it embeds; None takes the
            network's last three stages as L, M and H.
        head: for each of them what builds it from the map's shape (C, h, w) and the embedding's size.
        heads: the heads in use, a subset of ``taps``.
        embed_dim: size of each head's embedding: one number for all, or one a head.
        image_size: side of the images in pixels, from which the maps' shapes follow.
        normalize: L2-normalise the embeddings in training as well; at test they always are.
        concatenation: at test, "normalized" concatenates L2-normalised embeddings, each head weighing the same;
            "raw" concatenates them first and normalises once, as RLL's release did.

    Raises:
        InputError: for a head or a tap that doesn't exist, or sizes that don't fit them.
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
    ) -> None:
        super().__init__()
        if taps is None:
            if len(backbone.stages) < 3:
                raise InputError("model.taps=null: this network doesn't name its stages; give {L: ..., M: ..., H: ...}")
            taps = dict(zip("LMH", backbone.stages[-3:], strict=True))
        unknown = [name for name in heads if name not in taps or name not in head]
        if unknown or not heads or len(set(heads)) < len(heads):
            raise InputError(f"model.heads={list(heads)}: choose among {', '.join(taps)}, each once")
        if concatenation not in ("normalized", "raw"):
            raise InputError(f"model.concatenation={concatenation}: normalized or raw")
        self.backbone = backbone
        self.normalize = normalize
        self.concatenation = concatenation
        self.embed_dims = {name: _embed_dim(embed_dim, name) for name in heads}
        backbone.tap({name: taps[name] for name in heads})
        shapes = self._freeze_unreached({name: taps[name] for name in heads}, image_size)
        self.heads = nn.ModuleDict({name: head[name](shapes[name], self.embed_dims[name]) for name in heads})

    @torch.enable_grad()
    def _freeze_unreached(self, taps: Mapping[str, str], image_size: int) -> dict[str, tuple[int, int, int]]:
        """The tapped maps' shapes; parameters that no tap depends on stop asking for gradients.

        DistributedDataParallel waits for ever for the gradient of a parameter behind the deepest tap.
        """
        self.backbone.eval()
        _, maps = self.backbone(torch.zeros(1, 3, image_size, image_size))
        for name, path in taps.items():
            if name not in maps or maps[name].ndim != 4:
                raise InputError(f"model.taps.{name}={path}: this module gives no map (B, C, h, w) to embed")
        parameters = [p for p in self.backbone.parameters() if p.requires_grad]
        total = torch.stack([tapped.sum() for tapped in maps.values()]).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)
        self.backbone.train()
        return {name: (tapped.shape[1], tapped.shape[2], tapped.shape[3]) for name, tapped in maps.items()}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) RGB, 0-255 -> each head's embeddings (B, D), float32, for the losses."""
        _, maps = self.backbone(images)
        embeddings = {name: head(maps[name]).float() for name, head in self.heads.items()}
        if self.normalize:
            embeddings = {name: F.normalize(rows, dim=1) for name, rows in embeddings.items()}
        return embeddings

    @property
    def roles(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by what optimizers tell apart: "backbone" and "heads"."""
        return {"backbone": list(self.backbone.parameters()), "heads": list(self.heads.parameters())}

    def concatenate(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Each head's embeddings (B, D) -> the L2-normalised test embeddings (B, sum of D)."""
        parts = list(embeddings.values())
        if self.concatenation == "normalized":
            parts = [F.normalize(part, dim=1) for part in parts]
        return F.normalize(torch.cat(parts, dim=1), dim=1)

    def raw_features(self, images: Tensor) -> Tensor:
        """The backbone's own pooled features (B, F), which no head has seen."""
        features: Tensor = self.backbone(images)[0].flatten(1).float()
        return features


def _embed_dim(embed_dim: int | Mapping[str, int], name: str) -> int:
    size = embed_dim.get(name) if isinstance(embed_dim, Mapping) else embed_dim
    if not isinstance(size, int) or size < 1:
        raise InputError(f"model.embed_dim={embed_dim}: head {name} needs a size of at least 1")
    return size
