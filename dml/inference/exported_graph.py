"""The graph that an export writes, from pixels to vectors, and its files: ONNX and programs of torch.export."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dml import __version__
from dml.inference.embedder import Embedder
from dml.runtime.errors import InputError

logger = logging.getLogger(__name__)

ONNX, PROGRAM = ".onnx", ".pt2"  # the ends of the names of files that can be written
INPUT, OUTPUT = "images", "vectors"
FACTS = "dml.json"  # the name of the facts in a program's file
OPSET = 20  # the version of ONNX's operators, which ONNX Runtime reads from 1.17 on
MAX_ONNX_BYTES = 2_000_000_000  # of weights in one file of ONNX, whose format ends at 2 GiB
DYNAMIC = ({0: Dim("batch", min=1)},)  # the dimension of the input whose size may be any
TRACED_BATCH = 2  # images with which the network is traced; a tracer takes a batch of one for a constant
TRIED_SIZES = ((480, 640), (640, 480), (200, 200))
"""Heights and widths of images by which it is found out whether the preprocessing gives one size."""

INTERPOLATION = "bilinear with antialiasing, horizontal pass first, rounded to uint8 after each pass"
"""How the transforms of `dml.data.transforms` scale an image."""

Run = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""Runs a graph: pixels (B, h, w, 3) uint8 -> vectors (B, D) float32."""


class EmbeddingGraph(nn.Module):
    """A module from pixels (B, h, w, 3) uint8 RGB to vectors (B, D) float32, without a transform of files."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.model, self.join_heads = embedder.model, embedder.join_heads

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, h, w, 3) uint8 RGB -> vectors (B, D)."""
        return self.join_heads(self.model(images.permute(0, 3, 1, 2)))


def prepare(embedder: Embedder) -> Embedder:
    """Return the model as its graph computes it: on the CPU, with one view; warn if it averages several."""
    settings, views = embedder.settings, embedder.settings.views
    if views > 1:
        evaluation = {**settings.config["evaluation"], "crops": 1}
        settings = replace(settings, config={**settings.config, "evaluation": evaluation})
    model = embedder.model if embedder.device.type == "cpu" else deepcopy(embedder.model)
    prepared = Embedder(model, settings, embedder.heads, "cpu")
    if views > 1:
        logger.warning(
            "evaluation.crops=%d: the file gives vectors of one view, as model.embed(views=1) does; they can't be "
            "compared with those of %d views, so its fingerprint is another one, %s",
            views,
            views,
            prepared.fingerprint,
        )
    return prepared


def find_input_size(embedder: Embedder) -> tuple[int, int]:
    """Return the height and width that the preprocessing gives every image."""
    sizes = {(*embedder.preprocess(torch.zeros(3, *size, dtype=torch.uint8)).shape[1:],) for size in TRIED_SIZES}
    if len(sizes) > 1:
        line = f"transform.test: gives images of several sizes {sorted(sizes)}, and an exported graph takes one"
        raise InputError(f"{line}; train with a CenterCrop at the end, such as transform=imagenet")
    ((height, width),) = sizes
    return height, width


@torch.no_grad()
def trace(embedder: Embedder, height: int, width: int) -> ExportedProgram:
    """Trace the network of a model on the CPU, for batches of any number of images of one size."""
    images = torch.zeros(TRACED_BATCH, height, width, 3, dtype=torch.uint8)
    program = torch.export.export(EmbeddingGraph(embedder).eval(), (images,), dynamic_shapes=DYNAMIC)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def describe_graph(embedder: Embedder, height: int, width: int, levels: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts that are written into an exported file, by name."""
    test: Any = embedder.settings.config["transform"]["test"]
    steps = [*test["steps"]] if "steps" in test else [test]
    resizes = [step["_target_"] for step in steps if "resize" in step["_target_"].lower()]
    is_own = all(target.startswith("dml.") for target in resizes)  # another library's step states its interpolation
    return {
        "dml_version": __version__,
        "name": embedder.settings.name,
        "fingerprint": embedder.fingerprint,
        "dimension": embedder.dimension,
        "heads": [*embedder.heads],
        "levels": [*levels],
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", height, width, 3], "channels": "RGB"},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", embedder.dimension]},
        "preprocessing": steps,
        "background": embedder.settings.limits.background,
    } | ({"interpolation": INTERPOLATION} if is_own else {})


def write_graph(program: ExportedProgram, path: Path, suffix: str, facts: Mapping[str, Any]) -> None:
    """Write a traced graph and facts about it to a file."""
    if suffix == PROGRAM:
        content = BytesIO()  # PyTorch ends the process if it can't write its last bytes to a file
        with _quiet():
            torch.export.save(program, content, extra_files={FACTS: json.dumps(facts)})
        path.write_bytes(content.getbuffer())
        return
    size = sum(value.nbytes for value in program.state_dict.values())
    if size > MAX_ONNX_BYTES:
        raise InputError(f"{size / 1e9:.1f} GB of weights: an .onnx file holds 2 GB; a .pt2 file holds more")
    names: Any = {"input_names": [INPUT], "output_names": [OUTPUT], "opset_version": OPSET, "verbose": False}
    with _quiet():
        converted: Any = torch.onnx.export(program, (), dynamo=True, dynamic_shapes=DYNAMIC, **names)
    graph = converted.model
    for part in (*graph.graph.all_nodes(), *graph.graph.initializers.values()):
        part.metadata_props.clear()  # they name files of this machine
    graph.metadata_props.update(as_texts(facts))
    converted.save(path, external_data=False)


def write_quantized(exported: Path, path: Path, facts: Mapping[str, Any]) -> None:
    """Write an ONNX file whose linear layers have weights of 8 bits, and quantize their inputs while it runs.

    Convolutions stay as they are: with them, EfficientNet-Lite0 ran 13 times slower in ONNX Runtime 1.32, at a least
    cosine of 0.65.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    options: Any = {"op_types_to_quantize": ["MatMul"], "weight_type": QuantType.QInt8, "per_channel": True}
    with TemporaryDirectory() as folder, _quiet():
        prepared, quantized = Path(folder) / "prepared.onnx", Path(folder) / "quantized.onnx"
        quant_pre_process(exported, prepared, skip_symbolic_shape=True)
        quantize_dynamic(prepared, quantized, **options)
        model = onnx.load(quantized)
    del model.metadata_props[:]
    for name, text in as_texts(facts).items():
        model.metadata_props.add(key=name, value=text)
    path.write_bytes(model.SerializeToString())


def open_graph(path: Path, suffix: str) -> Run:
    """Open a written file and return the function that runs it on the CPU, with PyTorch's number of threads."""
    if suffix == PROGRAM:
        with path.open("rb") as opened:
            module = torch.export.load(opened).module()
        return torch.inference_mode()(lambda images: module(torch.from_numpy(images)).numpy())

    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return lambda images: session.run([OUTPUT], {INPUT: images})[0]


def as_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as texts, as the metadata of ONNX are: what isn't a text becomes JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' remarks on themselves off the console: what matters is compared afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
