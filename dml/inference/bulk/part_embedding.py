"""Embedding of the parts that are missing, in this process."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.inference.bulk.embedding_parts import EmbeddingParts
from dml.inference.image_embedder import ImageEmbedder
from dml.ops.text.console import progress_bar


def embed_parts(model: ImageEmbedder, parts: EmbeddingParts, missing: list[int], options: dict[str, Any]) -> None:
    """Embed the images of parts, and write each part as soon as it is complete.

    One loader reads the images of all parts, so that its processes start once. A part begins where a batch begins.

    Args:
        model: model that embeds images.
        parts: where the vectors are written.
        missing: numbers of the parts to embed, ascending.
        options: further arguments of `ImageEmbedder.embed_in_batches`.
    """
    paths = [parts.paths[row] for part in missing for row in parts.rows(part)]
    waiting: list[NDArray[np.float32]] = []
    due = iter(missing)
    part = next(due, None)
    with progress_bar("embedded", len(paths)) as advance:
        for positions, vectors in model.embed_in_batches(paths, **options):
            waiting.append(vectors)
            if part is not None and sum(map(len, waiting)) == len(parts.rows(part)):
                parts.write(part, np.concatenate(waiting))
                waiting, part = [], next(due, None)
            advance(len(positions))
