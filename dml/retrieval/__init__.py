"""Exact nearest neighbours and k-means, by FAISS on CPU or by torch on a CUDA device."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "kmeans",
    "nearest_neighbors",
    "unit_rows",
]

if TYPE_CHECKING:
    from dml.retrieval.kmeans_clusters import kmeans
    from dml.retrieval.rows import unit_rows
    from dml.retrieval.search import nearest_neighbors
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "kmeans": "kmeans_clusters",
            "nearest_neighbors": "search",
            "unit_rows": "rows",
        },
    )
