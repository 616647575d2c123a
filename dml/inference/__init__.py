"""A trained model in use: load it, embed images with it, search them, and save it for others."""

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
            "ImageEmbedder": "image_embedder",
            "Index": "image_index",
            "load": "loading",
        },
    )
