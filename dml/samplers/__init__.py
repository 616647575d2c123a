"""Batch samplers, which choose the rows of each batch by their labels or embeddings."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "ClassBalancedSampler",
    "EpochSampler",
    "HardClassSampler",
    "HierarchicalSampler",
    "ImageBalancedSampler",
    "LocalNeighborhoodSampler",
    "hard_shares",
]

if TYPE_CHECKING:
    from dml.samplers.base import EpochSampler
    from dml.samplers.class_balanced import ClassBalancedSampler
    from dml.samplers.hard_class import HardClassSampler
    from dml.samplers.hierarchical import HierarchicalSampler
    from dml.samplers.image_balanced import ImageBalancedSampler
    from dml.samplers.local_neighborhood import LocalNeighborhoodSampler, hard_shares
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "ClassBalancedSampler": "class_balanced",
            "EpochSampler": "base",
            "HardClassSampler": "hard_class",
            "HierarchicalSampler": "hierarchical",
            "ImageBalancedSampler": "image_balanced",
            "LocalNeighborhoodSampler": "local_neighborhood",
            "hard_shares": "local_neighborhood",
        },
    )
