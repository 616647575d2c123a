"""The export of a model to a file that runs without dml, and its comparison with the model.

The graph takes pixels (B, h, w, 3) uint8 RGB, as Pillow and NumPy hold images, of the size that the model's
preprocessing gives, and returns the vectors (B, D) float32 of `ImageEmbedder.embed` with one view. Scaling, the order
of the channels, mean and standard deviation, the network, its heads and what joins them are part of the graph. B may be
any number. To read, resize and crop an image is no part of it, as the images of a batch have different sizes before.
The steps of the preprocessing are facts in the file, like the fingerprint and the heads.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch import Tensor

from dml.data.subsets import take_some_classes
from dml.data.table import ImageTable
from dml.data.transforms import stack
from dml.evaluation import evaluate
from dml.inference import exported_graph
from dml.inference.embedder import Embedder
from dml.inference.exported_graph import ONNX, PROGRAM, Run, open_graph
from dml.inference.image_inputs import Source, list_source
from dml.run.builders import build_table, choose_final_split
from dml.run.settings import Settings, read_settings
from dml.runtime.errors import InputError, check_choice, check_installed
from dml.runtime.files import expand_home, replacing, write_text
from dml.runtime.text import printable

MAX_IMAGES, IMAGES_OF_CLASS = 1000, 4
"""The number of images that are taken of a larger test, and of each of its classes; recall@1 needs at least two."""
NOISE = 8  # images of random pixels
MIN_COSINE = 0.9999  # least cosine of an image's vectors by the model and by the file with which the file is written


class Probe(NamedTuple):
    """Inputs (N, 3, h, w) uint8 RGB of the network, and perhaps classes (N,) for recall@1 and names of their levels."""

    images: Tensor
    labels: NDArray[np.int64] | None = None
    levels: tuple[str, ...] = ()


def draw_noise(embedder: Embedder) -> Probe:
    """Draw images of random pixels, the same for each call."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (NOISE, 3, 256, 256), generator=generator, dtype=torch.uint8)
    return Probe(stack([embedder.preprocess(image) for image in pixels]))


def list_probe(embedder: Embedder, source: Source) -> Probe:
    """Read the images of a source, see `dml.inference.image_inputs.list_source`."""
    paths, names = list_source(source)
    labels = np.unique(names, return_inverse=True)[1]
    levels = source.levels if isinstance(source, ImageTable) else ()
    return Probe(
        _read(embedder, paths),
        labels if np.bincount(labels).max() > 1 and any(names) else None,
        levels,
    )


def read_test(embedder: Embedder) -> Probe:
    """Read test images of the run that trained the model, or validation images if it holds out none for a test."""
    config = embedder.settings.config
    if not {"dataset", "data", "evaluation"} <= config.keys():
        raise InputError("probe images: this model doesn't say how its data set is read; --probe FOLDER gives images")
    try:
        with embedder.settings.building():
            table = build_table(read_settings(OmegaConf.create({**config}), Settings))
    except InputError as error:
        raise InputError(f"probe images: {error}; --probe FOLDER gives others") from error
    tested = table.select_evaluated(choose_final_split(table))
    tested = tested.take(np.flatnonzero(tested.benchmark <= 0))  # of several lists, those of all levels or the finest
    if len(tested) > MAX_IMAGES:
        tested = take_some_classes(tested, classes=MAX_IMAGES // IMAGES_OF_CLASS, images=IMAGES_OF_CLASS)
    return Probe(_read(embedder, tested.paths.tolist()), tested.labels[:, 0], table.levels)


def _read(embedder: Embedder, paths: list[str]) -> Tensor:
    return stack([embedder.preprocess(path) for path in paths])


@dataclass(frozen=True)
class GraphResult:
    """What a graph gave on the probe images, beside the model."""

    file: Path | None  # file of the graph; None for the model itself
    max_difference: float  # largest absolute difference of a number in a vector from the model's
    min_cosine: float  # least cosine of an image's vector and the model's
    recall: float | None  # recall@1 of the vectors; None if the images have no classes
    images_per_second: float  # on the CPU, without reading and resizing


@dataclass(frozen=True)
class ExportReport:
    """An export and its comparison with the model."""

    file: Path
    images: int  # number of images that were compared
    model: GraphResult
    exported: GraphResult
    quantized: GraphResult | None = None  # of the file with weights of 8 bits; None if there is none


def compare_graphs(
    graphs: Sequence[tuple[Path | None, Run]], probe: Probe, dimension: int, batch_size: int
) -> list[GraphResult]:
    """Embed images with several graphs, the model itself first, in turns at each batch, and compare the vectors.

    The first image is a batch of its own, which a graph must take too, and warms up.
    """
    count = len(probe.images)
    vectors, seconds = np.zeros((len(graphs), count, dimension), np.float32), np.zeros(len(graphs))
    for start in (0, *range(1, count, batch_size)):
        rows = slice(start, start + batch_size if start else 1)
        pixels = np.ascontiguousarray(probe.images[rows].permute(0, 2, 3, 1).numpy())
        for index, (_, run) in enumerate(graphs):
            began = perf_counter()
            vectors[index, rows] = run(pixels)
            seconds[index] += (perf_counter() - began) * (start > 0 or count == 1)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=2)
    products = (vectors.astype(np.float64) * vectors[0]).sum(axis=2)
    cosines = products / np.maximum(lengths * lengths[0], 1e-12)
    speeds = max(1, count - 1) / np.maximum(seconds, 1e-9)
    differences = np.abs(vectors - vectors[0]).max(axis=(1, 2))
    recalls = [_compute_recall(rows, probe.labels) for rows in vectors]
    columns = (differences.tolist(), cosines.min(axis=1).tolist(), recalls, speeds.tolist())
    return [GraphResult(file, *values) for (file, _), *values in zip(graphs, *columns, strict=True)]


def _compute_recall(vectors: NDArray[np.float32], labels: NDArray[np.int64] | None) -> float | None:
    """Compute recall@1 of vectors (N, D), each image searched among the others; None without classes."""
    if labels is None:
        return None
    return evaluate(vectors, labels, metrics=("recall",), recall_at=(1,), clustering=False)["level0/recall@1"]


def refuse_difference(model: GraphResult, exported: GraphResult) -> None:
    """Make sure that an exported graph gives the vectors of its model."""
    is_near = exported.min_cosine >= MIN_COSINE  # NaN isn't
    if is_near and exported.recall == model.recall:
        return
    recalls = "" if model.recall is None else f", recall@1 is {exported.recall:.4f} instead of {model.recall:.4f}"
    raise InputError(
        f"{printable(exported.file)}: not written, as its vectors aren't the model's: the least cosine is "
        f"{exported.min_cosine:.6f} (at least {MIN_COSINE}){recalls}; the other kind of file, .onnx or .pt2, may do"
    )


def check_export(file: str | Path, quantize: str | None = None) -> list[Path]:
    """Make sure, before a model is loaded, that an export can be written -> its file, facts and file of 8 bits."""
    path = expand_home(file).absolute()
    if path.suffix not in (ONNX, PROGRAM):
        raise InputError(f"{printable(file)}: the name must end with {ONNX} or {PROGRAM} (torch.export)")
    check_choice("quantize", quantize, (None, "int8") if path.suffix == ONNX else (None,))
    files = [path, path.with_name(f"{path.name}.json"), path.with_suffix(f".int8{path.suffix}")]
    for target in files if quantize else files[:2]:
        if target.exists():
            raise InputError(f"{printable(target)}: exists; delete it or give another name")
    if path.suffix == ONNX:
        check_installed("onnx", "onnxscript", "onnxruntime", extra="export")
    return files


def export_model(
    embedder: Embedder, file: str | Path, probe: Probe, *, quantize: str | None = None, batch_size: int = 32
) -> ExportReport:
    """Write a model to a file, see `dml.ImageEmbedder.export`.

    A file gets its name once its vectors are known to be the model's, so an interrupted export leaves none. The facts
    are also in a file beside it, such as ``model.onnx.json``.
    """
    path, facts_file, quantized_file = check_export(file, quantize)
    model = exported_graph.prepare(embedder)
    height, width = exported_graph.find_input_size(model)
    facts = exported_graph.describe_graph(model, height, width, probe.levels)
    facts |= {"opset": exported_graph.OPSET} if path.suffix == ONNX else {}
    program = exported_graph.trace(model, height, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        partial = files.enter_context(replacing(path))
        exported_graph.write_graph(program, partial, path.suffix, facts)
        graphs: list[tuple[Path | None, Run]] = [
            (None, lambda images: model.embed_batch(torch.from_numpy(images).permute(0, 3, 1, 2))),
            (path, open_graph(partial, path.suffix)),
        ]
        if quantize:
            small = files.enter_context(replacing(quantized_file))
            exported_graph.write_quantized(partial, small, facts | {"quantization": "int8, dynamic"})
            graphs.append((quantized_file, open_graph(small, path.suffix)))
        results = compare_graphs(graphs, probe, model.dimension, batch_size)
        refuse_difference(*results[:2])
        write_text(facts_file, json.dumps(facts, indent=1) + "\n")
    return ExportReport(path, len(probe.images), *results)
