"""The export of a model to a file that runs without dml, and its comparison with the model.

The graph takes pixels (B, h, w, 3) uint8 RGB, as Pillow and NumPy hold images, of the size that the model's
preprocessing gives, and returns the vectors (B, D) float32 of `ImageEmbedder.embed` with one view. Scaling, the order
of the channels, mean and standard deviation, the network, its heads and what joins them are part of the graph. B may be
any number. To read, resize and crop an image is no part of it, as the images of a batch have different sizes before.
The steps of the preprocessing are facts in the file, like the fingerprint and the heads.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch import Tensor

from dml.data.image_files.images import UnreadableImageError, without_remedy
from dml.data.subsets import take_some_classes
from dml.data.table import ImageTable
from dml.data.transforms import stack
from dml.evaluation import evaluate
from dml.inference.exported_graph import (
    ONNX,
    PROGRAM,
    Run,
    check_libraries,
    copy_to_cpu,
    describe_graph,
    find_input_size,
    open_graph,
    take_one_view,
    trace,
    write_graph,
    write_quantized,
)
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import Source, list_source, read_pixels
from dml.run.builders import build_table
from dml.run.evaluators import choose_final_split
from dml.run.settings import Settings, read_settings
from dml.runtime.errors import InputError
from dml.runtime.files import replacing, write_text
from dml.runtime.paths import expand_home
from dml.runtime.text import printable

MAX_IMAGES = 1000
"""The number of images of a run's test that are taken at most."""

IMAGES_OF_CLASS = 4
"""The number of images of each class that are taken from a larger test; recall@1 needs at least two."""

NOISE = 8
"""The number of images of random pixels."""


@dataclass(frozen=True)
class Probe:
    """Inputs (N, 3, h, w) uint8 RGB of the network, and perhaps classes (N,) for recall@1 and names of their levels."""

    images: Tensor
    labels: NDArray[np.int64] | None = None
    levels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def recall(self, vectors: NDArray[np.float32]) -> float | None:
        """Compute recall@1 of vectors (N, D), each image searched among the others; None without classes."""
        if self.labels is None:
            return None
        metrics = evaluate(vectors, self.labels, metrics=("recall",), recall_at=(1,), clustering=False)
        return metrics["level0/recall@1"]


def draw_noise(embedder: ImageEmbedder) -> Probe:
    """Draw images of random pixels, the same for each call."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (NOISE, 3, 256, 256), generator=generator, dtype=torch.uint8)
    return Probe(stack([embedder.preprocess(image) for image in pixels]))


def list_probe(embedder: ImageEmbedder, source: Source) -> Probe:
    """Read the images of a source, see `dml.inference.image_inputs.list_source`."""
    paths, names = list_source(source)
    labels = np.unique(names, return_inverse=True)[1]
    levels = source.levels if isinstance(source, ImageTable) else ()
    return Probe(_read(embedder, paths), labels if np.bincount(labels).max() > 1 and any(names) else None, levels)


def read_test(embedder: ImageEmbedder) -> Probe:
    """Read test images of the run that trained the model, or validation images if it holds out none for a test."""
    if not {"dataset", "data", "evaluation"} <= embedder.settings.config.keys():
        raise InputError("probe images: this model doesn't say how its data set is read; --probe FOLDER gives images")
    try:
        table = _read_data_set(embedder)
    except InputError as error:
        raise InputError(f"probe images: {error}; --probe FOLDER gives others") from error
    tested = table.select_evaluated(choose_final_split(table))
    tested = tested.take(np.flatnonzero(tested.benchmark <= 0))  # of several lists, those of all levels or the finest
    if len(tested) > MAX_IMAGES:
        tested = take_some_classes(tested, classes=MAX_IMAGES // IMAGES_OF_CLASS, images=IMAGES_OF_CLASS)
    return Probe(_read(embedder, tested.paths.tolist()), tested.labels[:, 0], table.levels)


def _read_data_set(embedder: ImageEmbedder) -> ImageTable:
    """Read the table of the data set that a model was trained on."""
    config = embedder.settings.config
    if "dataset" not in config:
        raise InputError(f"{embedder.settings.name}: dml didn't train it, so it names no data set")
    with embedder.settings.building():
        return build_table(read_settings(OmegaConf.create({**config}), Settings))


def _read(embedder: ImageEmbedder, paths: list[str]) -> Tensor:
    transform, limits = embedder.settings.build_transform(), embedder.settings.limits
    try:
        return stack([transform(read_pixels(path, limits)) for path in paths])
    except UnreadableImageError as error:
        raise InputError(f"{without_remedy(error)} (--probe FOLDER gives other images)") from error


MIN_COSINE = 0.9999
"""The least cosine of an image's vectors by the model and by the file with which the file is written."""


@dataclass(frozen=True)
class GraphResult:
    """What a graph gave on the probe images, beside the model."""

    file: Path | None  # file of the graph; None for the model itself
    max_difference: float  # largest absolute difference of a number in a vector from the model's
    min_cosine: float  # least cosine of an image's vector and the model's
    recall: float | None  # recall@1 of the vectors; None if the images have no classes
    images_per_second: float  # on the CPU, without reading and resizing


def compare_graphs(
    graphs: Sequence[tuple[Path | None, Run]], probe: Probe, embedder: ImageEmbedder, batch_size: int
) -> list[GraphResult]:
    """Embed images with several graphs, the model itself first, in turns at each batch, and compare the vectors."""
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
            probe.recall(graph_vectors),
            timed / max(spent, 1e-9),
        )
        for (file, _), graph_vectors, spent in zip(graphs, vectors, seconds, strict=True)
    ]


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


def _batches(count: int, batch_size: int) -> Iterator[slice]:
    """Yield the slices of the batches: the first image alone, which a graph must take too, then the others."""
    yield slice(0, 1)
    for start in range(1, count, batch_size):
        yield slice(start, min(start + batch_size, count))


def _cosines(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float64]:
    first, second = vectors.astype(np.float64), expected.astype(np.float64)
    lengths: NDArray[np.float64] = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / np.maximum(lengths, 1e-12))


@dataclass(frozen=True)
class ExportReport:
    """An export and its comparison with the model."""

    file: Path
    images: int  # number of images that were compared
    model: GraphResult
    exported: GraphResult
    quantized: GraphResult | None = None  # of the file with weights of 8 bits; None if there is none


def check_export(file: str | Path, quantize: str | None = None) -> Path:
    """Make sure, before a model is loaded, that a file can be written, and return its path."""
    path = expand_home(file).absolute()
    if path.suffix not in (ONNX, PROGRAM):
        raise InputError(f"{printable(file)}: the name must end with {ONNX} or {PROGRAM} (torch.export)")
    if quantize not in (None, "int8"):
        raise InputError(f"quantize={printable(quantize)}: must be int8 or None")
    if quantize and path.suffix != ONNX:
        raise InputError(f"quantize={quantize}: only for a name that ends with {ONNX}, not {printable(path.name)}")
    for target in (path, facts_path(path), *([quantized_path(path)] if quantize else [])):
        if target.exists():
            raise InputError(f"{printable(target)}: exists; delete it or give another name")
    check_libraries(path.suffix)
    return path


def facts_path(path: Path) -> Path:
    """Return the path of the file with the facts of an exported file."""
    return path.with_name(f"{path.name}.json")


def quantized_path(path: Path) -> Path:
    """Return the path of the file with weights of 8 bits beside an ONNX file."""
    return path.with_suffix(f".int8{path.suffix}")


def export_model(
    embedder: ImageEmbedder, file: str | Path, probe: Probe, *, quantize: str | None = None, batch_size: int = 32
) -> ExportReport:
    """Write a model to a file, see `dml.inference.ImageEmbedder.export`.

    A file gets its name once its vectors are known to be the model's, so an interrupted export leaves none. The facts
    are also in a file beside it, such as ``model.onnx.json``.
    """
    path = check_export(file, quantize)
    on_cpu = take_one_view(copy_to_cpu(embedder))
    height, width = find_input_size(on_cpu)
    facts = describe_graph(on_cpu, height, width, probe.levels)
    program = trace(on_cpu, height, width)
    path.parent.mkdir(parents=True, exist_ok=True)

    def run_model(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return on_cpu.embed_batch(torch.from_numpy(images).permute(0, 3, 1, 2))

    with ExitStack() as files:
        partial = files.enter_context(replacing(path))
        facts |= write_graph(program, partial, path.suffix, facts)
        graphs: list[tuple[Path | None, Run]] = [(None, run_model), (path, open_graph(partial, path.suffix))]
        if quantize:
            small = files.enter_context(replacing(quantized_path(path)))
            write_quantized(partial, small, facts | {"quantization": "int8, dynamic"})
            graphs.append((quantized_path(path), open_graph(small, path.suffix)))
        model, exported, *quantized = compare_graphs(graphs, probe, on_cpu, batch_size)
        refuse_difference(model, exported)
        write_text(facts_path(path), json.dumps(facts, indent=1) + "\n")
    return ExportReport(path, len(probe), model, exported, quantized[0] if quantized else None)
