"""The export of a model to a file that runs without dml, and its comparison with the model.

The graph takes pixels (B, h, w, 3) uint8 RGB, as Pillow and NumPy hold images, of the size that the model's
preprocessing gives, and returns the vectors (B, D) float32 of `ImageEmbedder.embed` with one view. Scaling, the order
of the channels, mean and standard deviation, the network, its heads and what joins them are part of the graph. B may be
any number. To read, resize and crop an image is no part of it, as the images of a batch have different sizes before.
The steps of the preprocessing are facts in the file, like the fingerprint and the heads.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from dml.inference.embedder import Embedder
from dml.inference.exports.export_graph import copy_to_cpu, describe_graph, find_input_size, take_one_view, trace
from dml.inference.exports.exported_files import (
    ONNX,
    PROGRAM,
    Run,
    check_libraries,
    open_graph,
    write_graph,
    write_quantized,
)
from dml.inference.exports.graph_comparison import GraphResult, compare_graphs, refuse_difference
from dml.inference.exports.probe_images import Probe
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.files import replacing, write_text
from dml.ops.filesystem.paths import expand_home


@dataclass(frozen=True)
class ExportReport:
    """An export and its comparison with the model.

    Args:
        file: file that was written.
        images: number of images that were compared.
        model: result of the model itself.
        exported: result of the file.
        quantized: result of the file with weights of 8 bits; None if there is none.
    """

    file: Path
    images: int
    model: GraphResult
    exported: GraphResult
    quantized: GraphResult | None = None


def check_export(file: str | Path, quantize: str | None = None) -> Path:
    """Make sure, before a model is loaded, that a file can be written, and return its path.

    Args:
        file: file to write.
        quantize: "int8" if a second file with weights of 8 bits is written.

    Raises:
        InputError: if the end of its name is unknown, a file is there, a library is missing, or only ONNX can do it.
    """
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
    embedder: Embedder, file: str | Path, probe: Probe, *, quantize: str | None = None, batch_size: int = 32
) -> ExportReport:
    """Write a model to a file, see `dml.inference.ImageEmbedder.export`.

    A file gets its name once its vectors are known to be the model's, so an interrupted export leaves none. The facts
    are also in a file beside it, such as ``model.onnx.json``.

    Args:
        embedder: model to export.
        file: file to write.
        probe: images to compare on.
        quantize: "int8" writes a second file with weights of 8 bits, whatever they cost in recall.
        batch_size: number of images at a time in the comparison.

    Raises:
        InputError: if a cosine is below 0.9999, recall@1 changes, or `check_export` refuses the file.
    """
    path = check_export(file, quantize)
    on_cpu = take_one_view(copy_to_cpu(embedder))
    height, width = find_input_size(on_cpu)
    facts = describe_graph(on_cpu, height, width, probe.levels)
    program = trace(on_cpu, height, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        partial = files.enter_context(replacing(path))
        facts |= write_graph(program, partial, path.suffix, facts)
        graphs: list[tuple[Path | None, Run]] = [(None, _run_model(on_cpu)), (path, open_graph(partial, path.suffix))]
        if quantize:
            small = files.enter_context(replacing(quantized_path(path)))
            write_quantized(partial, small, facts | {"quantization": "int8, dynamic"})
            graphs.append((quantized_path(path), open_graph(small, path.suffix)))
        model, exported, *quantized = compare_graphs(graphs, probe, on_cpu, batch_size)
        refuse_difference(model, exported)
        write_text(facts_path(path), json.dumps(facts, indent=1) + "\n")
    return ExportReport(path, len(probe), model, exported, quantized[0] if quantized else None)


def _run_model(embedder: Embedder) -> Run:
    """Return the function that embeds pixels (B, h, w, 3) with the model itself."""
    return lambda images: embedder.embed_batch(torch.from_numpy(images).permute(0, 3, 1, 2))
