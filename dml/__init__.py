"""Deep metric learning: train, judge and use networks for image retrieval."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "ImageEmbedder",
    "Index",
    "load",
]

if TYPE_CHECKING:
    from dml.inference.image_embedder import ImageEmbedder
    from dml.inference.image_index import Index
    from dml.inference.loading import load
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "ImageEmbedder": "inference.image_embedder",
            "Index": "inference.image_index",
            "load": "inference.loading",
        },
    )
