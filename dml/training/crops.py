from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def embed_views(embed: Callable[[Tensor], dict[str, Tensor]], images: Tensor) -> dict[str, Tensor]:
    """Embed the V views of each image, and average the embeddings of each image -> embeddings (B, D) by name.

    The average has the direction of the mean of the L2-normalised embeddings of the views, and the mean of their
    lengths. So it is that mean once it is normalised, and where raw embeddings are concatenated, a head with longer
    embeddings keeps its larger weight. According to Song et al. ("Deep metric learning via facility location", 2017),
    the figures of N-pair rest on the averaged embeddings of ten crops, which were random.

    Args:
        embed: function of images (B, 3, h, w) that returns embeddings (B, D) by name.
        images: (B, V, 3, h, w); one view of all images is embedded at a time, so V views take no more memory than one.
    """
    views = [embed(view) for view in images.unbind(1)]
    return {name: _mean([view[name] for view in views]) for name in views[0]}


def _mean(views: Sequence[Tensor]) -> Tensor:
    """Average the embeddings (B, D) of V views -> (B, D)."""
    stacked = torch.stack([*views])
    direction = F.normalize(F.normalize(stacked, dim=2).mean(dim=0), dim=1)
    length: Tensor = torch.linalg.vector_norm(stacked, dim=2).mean(dim=0)
    return direction * length[:, None]
