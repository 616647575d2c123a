"""The comparison of an exported graph with its model: their vectors, recall@1 and speed on the same images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dml.evaluation.geometry import Geometry
from dml.inference.embedder import Embedder
from dml.inference.exports.exported_files import Run
from dml.inference.exports.probe_images import Probe
from dml.ops.errors import InputError
from dml.ops.escaping import printable

MIN_COSINE = 0.9999
"""The least cosine of an image's vectors by the model and by the file with which the file is written."""


@dataclass(frozen=True)
class GraphResult:
    """What a graph gave on the probe images, beside the model.

    Args:
        file: file of the graph; None for the model itself.
        max_difference: largest absolute difference of a number in a vector from the model's.
        min_cosine: least cosine of an image's vector and the model's.
        recall: recall@1 of the vectors; None if the images have no classes.
        images_per_second: speed of the network on the CPU, without reading and resizing.
    """

    file: Path | None
    max_difference: float
    min_cosine: float
    recall: float | None
    images_per_second: float


def compare_graphs(
    graphs: Sequence[tuple[Path | None, Run]], probe: Probe, embedder: Embedder, batch_size: int
) -> list[GraphResult]:
    """Embed images with several graphs, the model itself first, and compare the vectors with the model's.

    The graphs take turns at each batch, so that they are timed under the same load.

    Args:
        graphs: file and function of each graph.
        probe: images to embed.
        embedder: model, whose geometry says how vectors are compared.
        batch_size: number of images at a time.
    """
    curvature = Geometry.from_ball(embedder.ball).curvature
    vectors = [np.zeros((len(probe), embedder.dimension), np.float32) for _ in graphs]
    seconds, timed = [0.0] * len(graphs), 0
    for number, rows in enumerate(_batches(len(probe), batch_size)):
        pixels = np.ascontiguousarray(probe.images[rows].permute(0, 2, 3, 1).numpy())
        is_timed = number > 0 or len(probe) == 1  # the first image warms up
        timed += len(pixels) * is_timed
        for index, (_, run) in enumerate(graphs):
            start = perf_counter()
            vectors[index][rows] = run(pixels)
            seconds[index] += (perf_counter() - start) * is_timed
    return [
        GraphResult(
            file,
            float(np.abs(graph_vectors - vectors[0]).max()),
            float(_cosines(graph_vectors, vectors[0]).min()),
            probe.recall(graph_vectors, curvature),
            timed / max(spent, 1e-9),
        )
        for (file, _), graph_vectors, spent in zip(graphs, vectors, seconds, strict=True)
    ]


def refuse_difference(model: GraphResult, exported: GraphResult) -> None:
    """Make sure that an exported graph gives the vectors of its model.

    Raises:
        InputError: if a cosine is below 0.9999, or recall@1 is another.
    """
    is_near = exported.min_cosine >= MIN_COSINE  # NaN isn't
    if is_near and exported.recall == model.recall:
        return
    recalls = "" if model.recall is None else f", recall@1 is {exported.recall:.4f} instead of {model.recall:.4f}"
    raise InputError(
        f"{printable(exported.file)}: not written, as its vectors aren't the model's: the least cosine is "
        f"{exported.min_cosine:.6f} (at least {MIN_COSINE}){recalls}; the other kind of file, .onnx or .pt2, may do"
    )


def _batches(count: int, batch_size: int) -> Iterator[slice]:
    """Yield the slices of the batches: the first image alone, which a graph must take too, then the others."""
    yield slice(0, 1)
    for start in range(1, count, batch_size):
        yield slice(start, min(start + batch_size, count))


def _cosines(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute the cosine of each row (N, D) with the same row of the expected vectors -> (N,)."""
    first, second = vectors.astype(np.float64), expected.astype(np.float64)
    lengths: NDArray[np.float64] = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / np.maximum(lengths, 1e-12))
