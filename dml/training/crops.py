from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def over_crops(embed: Callable[[Tensor], dict[str, Tensor]], images: Tensor) -> dict[str, Tensor]:
    """What ``embed`` gives for each image, or, if it stands there in several views, for their mean.

    The mean points where the mean of the views' L2-normalised embeddings points, and is as long as they are on
    average, so that normalising it gives the mean of the normalised, normalised. The length is for concatenations of
    raw embeddings, where a longer head weighs more. Averaging the embeddings of ten crops is what N-pair's figures
    are said to rest on (Song et al., "Deep metric learning via facility location", 2017); those crops were random.

    Args:
        embed: images (B, 3, h, w) -> embeddings (B, D) by name.
        images: (B, 3, h, w), or (B, V, 3, h, w); a view of all images at a time is embedded, so V views take no more
            memory than one.
    """
    if images.ndim == 4:
        return embed(images)
    views = [embed(view) for view in images.unbind(1)]
    return {name: _mean([view[name] for view in views]) for name in views[0]}


def _mean(views: Sequence[Tensor]) -> Tensor:
    """V times (B, D) -> (B, D)."""
    stacked = torch.stack([*views])
    direction = F.normalize(F.normalize(stacked, dim=2).mean(dim=0), dim=1)
    length: Tensor = torch.linalg.vector_norm(stacked, dim=2).mean(dim=0)
    return direction * length[:, None]
