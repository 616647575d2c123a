"""Every model of conf/model is exported for torch.export, and a transformer also to ONNX."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from configurations import CONF, compose
from hydra.utils import instantiate
from small_embedders import SETTINGS
from torchvision.models.resnet import ResNet

from dml.inference.exported_graph import open_graph, trace, write_graph
from dml.inference.image_embedder import ImageEmbedder

pytestmark = pytest.mark.pipeline

CONFIGS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
FAMILIES = ("tf_efficientnet_lite0", "resnet18", "dinov2_small", "dinov3_convnext_tiny")
"""A small network of each family; the others are thorough."""
SIZES = {"bn_inception": 144, "googlenet": 144, "googlenet_branches": 144}
"""The smallest images that leave 5 x 5 cells for the pool of RLL's heads; others are 64 pixels wide."""
NAMES = {"timm": "convnext_atto"}
AS_ONNX = ("dinov3_small",)
"""A model with rotary position embeddings, which also becomes an ONNX file; each takes seconds."""


@pytest.fixture
def _short_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build transformers of one block, and others of a block in each stage: more blocks add no operator."""
    whole, decode = timm.create_model, timm.models.efficientnet.decode_arch_def
    monkeypatch.setattr("timm.models.efficientnet.decode_arch_def", lambda stages, *_, **__: decode(stages, 0.1))

    def create_short(name: str, **options: Any) -> Any:
        short: dict[str, Any] = {"depth": 1} if name.startswith(("vit", "eva")) else {}
        return whole(name, **options, **({"depths": (1, 1, 1, 1)} if name.startswith("convnext") else short))

    monkeypatch.setattr("timm.create_model", create_short)
    make_resnet = ResNet.__init__
    monkeypatch.setattr(ResNet, "__init__", lambda self, block, _, **rest: make_resnet(self, block, [1] * 4, **rest))


@pytest.mark.usefixtures("_short_networks")
@pytest.mark.parametrize(
    "name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.thorough) for name in CONFIGS if name not in FAMILIES)]
)
def test_every_model_is_exported(name: str, tmp_path: Path) -> None:
    size = SIZES.get(name, 64)
    network = [f"model.backbone.name={NAMES[name]}"] if name in NAMES else []
    config = compose(
        f"model={name}", "model.backbone.weights=null", "model.embed_dim=8", f"transform.size={size}", *network
    )
    torch.manual_seed(0)
    model = ImageEmbedder(instantiate(config.model), SETTINGS, device="cpu")
    program = trace(model, size, size)
    pixels = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8)
    expected = model.embed_batch(pixels.permute(0, 3, 1, 2))
    with torch.no_grad():
        np.testing.assert_allclose(program.module()(pixels).numpy(), expected, atol=1e-5)
    if name in AS_ONNX:
        write_graph(program, tmp_path / "model.onnx", ".onnx", {})
        np.testing.assert_allclose(open_graph(tmp_path / "model.onnx", ".onnx")(pixels.numpy()), expected, atol=1e-5)
