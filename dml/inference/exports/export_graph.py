"""The graph that an export writes: from pixels to the vectors that `ImageEmbedder.embed` gives for one view."""

import logging
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dml.inference.embedder import Embedder
from dml.ops.errors import InputError
from dml.ops.libraries.versions import own_version

logger = logging.getLogger(__name__)

INPUT, OUTPUT = "images", "vectors"
"""The names of the graph's input and output."""

DYNAMIC = ({0: Dim("batch", min=1)},)
"""The dimension of the input whose size may be any."""

TRACED_BATCH = 2
"""The number of images with which the network is traced; a tracer takes a batch of one image for a constant."""

INTERPOLATION = "bilinear with antialiasing, horizontal pass first, rounded to uint8 after each pass"
"""How the transforms of `dml.data.transforms` scale an image."""

TRIED_SIZES = ((480, 640), (640, 480), (200, 200))
"""Heights and widths of images by which it is found out whether the preprocessing gives one size."""


class EmbeddingGraph(nn.Module):
    """A module from pixels (B, h, w, 3) uint8 RGB to vectors (B, D) float32, without a transform of files.

    Args:
        embedder: model on the CPU.
    """

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.model = embedder.model
        self.join_heads = embedder.join_heads

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, h, w, 3) uint8 RGB -> vectors (B, D)."""
        return self.join_heads(self.model(images.permute(0, 3, 1, 2)))


def copy_to_cpu(embedder: Embedder) -> Embedder:
    """Return the model on the CPU: itself if it is there, and else a copy."""
    if embedder.device.type == "cpu":
        return embedder
    return Embedder(deepcopy(embedder.model), embedder.settings, embedder.heads, "cpu")


def take_one_view(embedder: Embedder) -> Embedder:
    """Return the model as its graph computes it, with the fingerprint of one view; warn if it averages several.

    Args:
        embedder: model on the CPU.
    """
    settings = embedder.settings
    if settings.views == 1:
        return embedder
    config = {**settings.config, "evaluation": {**settings.config["evaluation"], "crops": 1}}
    with_one_view = Embedder(embedder.model, replace(settings, config=config), embedder.heads, "cpu")
    logger.warning(
        "evaluation.crops=%d: the file gives vectors of one view, as model.embed(views=1) does; they can't be compared "
        "with those of %d views, so its fingerprint is another one, %s",
        settings.views,
        settings.views,
        with_one_view.fingerprint,
    )
    return with_one_view


def find_input_size(embedder: Embedder) -> tuple[int, int]:
    """Return the height and width that the preprocessing gives every image.

    Raises:
        InputError: if they depend on the image, as one graph takes images of one size.
    """
    sizes = {tuple(embedder.preprocess(torch.zeros(3, *size, dtype=torch.uint8)).shape[1:]) for size in TRIED_SIZES}
    if len(sizes) > 1:
        listed = ", ".join(f"{width} x {height}" for height, width in sorted(sizes))
        raise InputError(
            f"transform.test: gives images of several sizes ({listed}), and an exported graph takes one; train with a "
            "CenterCrop at the end, such as transform=imagenet"
        )
    ((height, width),) = sizes
    return height, width


@torch.no_grad()
def trace(embedder: Embedder, height: int, width: int) -> ExportedProgram:
    """Trace the network of a model on the CPU, for batches of any number of images of one size."""
    graph = EmbeddingGraph(embedder).eval()
    images = torch.zeros(TRACED_BATCH, height, width, 3, dtype=torch.uint8)
    program = torch.export.export(graph, (images,), dynamic_shapes=DYNAMIC)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def describe_graph(embedder: Embedder, height: int, width: int, levels: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts that are written into an exported file, by name.

    Args:
        embedder: model that is exported.
        height: height of the graph's input in pixels.
        width: width of the graph's input in pixels.
        levels: names of the levels of the labels, the finest first; empty if they aren't known.
    """
    test: Any = embedder.settings.config["transform"]["test"]
    steps = [*test["steps"]] if "steps" in test else [test]
    resizes = [step["_target_"] for step in steps if "resize" in step["_target_"].lower()]
    is_own = all(target.startswith("dml.") for target in resizes)  # another library's step states its interpolation
    return {
        "dml_version": own_version(),
        "name": embedder.settings.name,
        "fingerprint": embedder.fingerprint,
        "dimension": embedder.dimension,
        "heads": [*embedder.heads],
        "geometry": embedder.geometry,
        "levels": [*levels],
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", height, width, 3], "channels": "RGB"},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", embedder.dimension]},
        "preprocessing": steps,
        "background": embedder.settings.limits.background,
    } | ({"interpolation": INTERPOLATION} if is_own else {})
