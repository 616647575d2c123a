"""Weights of BN-Inception in Caffe's format; protobuf writes the files, from the messages of caffe.proto."""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from configurations import compose
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hydra.utils import instantiate
from torch import Tensor, nn

from dml.models import networks
from dml.models.bn_inception import BNInception
from dml.models.heads import AuxiliaryHead, PoolHead
from dml.models.weights import read_caffemodel
from dml.runtime.errors import InputError

Kind = descriptor_pb2.FieldDescriptorProto
MESSAGES: dict[str, list[tuple[str, int, int, str]]] = {
    "BlobShape": [("dim", 1, Kind.TYPE_INT64, "packed")],
    "BlobProto": [
        *((name, number, Kind.TYPE_INT32, "") for number, name in enumerate(("num", "channels", "height", "width"), 1)),
        ("data", 5, Kind.TYPE_FLOAT, "packed"),
        ("diff", 6, Kind.TYPE_FLOAT, "packed"),
        ("shape", 7, Kind.TYPE_MESSAGE, "BlobShape"),
        ("double_data", 8, Kind.TYPE_DOUBLE, "packed"),
    ],
    "LayerParameter": [
        ("name", 1, Kind.TYPE_STRING, ""),
        ("type", 2, Kind.TYPE_STRING, ""),
        ("loss_weight", 5, Kind.TYPE_FLOAT, "unpacked"),
        ("blobs", 7, Kind.TYPE_MESSAGE, "BlobProto"),
        ("phase", 10, Kind.TYPE_INT32, ""),
    ],
    "V1LayerParameter": [
        ("name", 4, Kind.TYPE_STRING, ""),
        ("type", 5, Kind.TYPE_INT32, ""),
        ("blobs", 6, Kind.TYPE_MESSAGE, "BlobProto"),
    ],
    "NetParameter": [
        ("name", 1, Kind.TYPE_STRING, ""),
        ("layers", 2, Kind.TYPE_MESSAGE, "V1LayerParameter"),
        ("layer", 100, Kind.TYPE_MESSAGE, "LayerParameter"),
    ],
}
REPEATED = ("packed", "unpacked")


def declare_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    for message, fields in MESSAGES.items():
        declared = file.message_type.add(name=message)
        for name, number, kind, note in fields:
            is_repeated = note in REPEATED or name in ("blobs", "layer", "layers")
            label = Kind.LABEL_REPEATED if is_repeated else Kind.LABEL_OPTIONAL
            field = declared.field.add(name=name, number=number, type=kind, label=label)
            if kind == Kind.TYPE_MESSAGE:
                field.type_name = f".caffe.{note}"
            elif is_repeated:
                field.options.packed = note == "packed"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"caffe.{name}")) for name in MESSAGES}


CAFFE = declare_messages()


def write(path: Path, layers: Mapping[str, list[Tensor]], form: str = "layer") -> Path:
    """Write the arrays of each layer as today's files have them, as old ones (layers), or in float64 (double)."""
    net = CAFFE["NetParameter"](name="GoogleNet")
    for name, arrays in layers.items():
        layer = net.layers.add(name=name, type=4) if form == "layers" else net.layer.add(name=name, type="x", phase=1)
        if form != "layers":
            layer.loss_weight.extend([0.5])  # a field that isn't read, as are many in Caffe's files
        for array in arrays:
            blob = layer.blobs.add()
            (blob.double_data if form == "double" else blob.data).extend(array.flatten().tolist())
            if form == "layers":
                blob.num, blob.channels, blob.height, blob.width = (1,) * (4 - array.ndim) + tuple(array.shape)
            else:
                blob.shape.dim.extend(array.shape)
    path.write_bytes(net.SerializeToString())
    return path


def released_layers(network: nn.Module, divisor: float = 999.98) -> dict[str, list[Tensor]]:
    """The layers of a network by the names in RLL's train.prototxt, whose convolutions have no bias."""
    layers: dict[str, list[Tensor]] = {"data": [], "pool1/3x3_s2": []}
    for key, module in network.named_modules():
        name = re.sub(r"_(3x3|5x5|1x1|double|pool|conv|fc|7x7)", r"/\1", key.removesuffix("_bn"), count=1)
        name = re.sub(r"double_3x3_([12])", lambda match: "double3x3" + "ab"[int(match[1]) - 1], name)
        name = name.replace("double_3x3", "double3x3")
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            statistics = [module.running_mean * divisor, module.running_var * divisor, torch.tensor([divisor])]
            layers |= {f"{name}/bn": statistics, f"{name}/bn/sc": [module.weight.detach(), module.bias.detach()]}
        elif isinstance(module, nn.Conv2d | nn.Linear):
            layers[name] = [module.weight.detach()]
    return layers | {f"loss{i}/classifier": [torch.zeros(10, 1024), torch.zeros(10)] for i in (1, 2, 3)}


@pytest.fixture(scope="module")
def trained() -> BNInception:
    """A network with branches whose batch normalization has seen images; its biases are 0, as Caffe's file has none."""
    torch.manual_seed(0)
    network = BNInception(num_classes=0, branches=True)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.1, 0.1)
    return network.eval()


@pytest.mark.networks
def test_names_are_those_of_the_release(trained: BNInception) -> None:
    layers = released_layers(trained)
    assert {
        "conv1/7x7_s2",
        "conv2/3x3_reduce/bn",
        "inception_3a/double3x3_reduce/bn/sc",
        "inception_3c/double3x3b",
    } <= {*layers}
    assert {"inception_5b/pool_proj", "inception_4e/3x3/bn", "loss1/conv", "loss1/fc/bn/sc", "loss2/fc"} <= {*layers}
    assert layers["loss1/conv"][0].shape == (128, 576, 1, 1)
    assert layers["loss1/fc"][0].shape == (1024, 2048)
    assert layers["loss2/fc"][0].shape == (1024, 512)


@pytest.mark.networks
@pytest.mark.parametrize(("form", "branches"), [("layer", True), ("layers", True), ("double", False)])
def test_a_caffemodel_gives_all_of_its_weights(tmp_path: Path, trained: BNInception, form: str, branches: bool) -> None:
    path = write(tmp_path / "googlenet_bn.caffemodel", released_layers(trained), form)
    loaded = networks.bn_inception(str(path), branches=branches).network.state_dict()
    expected = {key: value for key, value in trained.state_dict().items() if branches or not key.startswith("loss")}
    assert loaded.keys() == expected.keys()
    for key, value in expected.items():
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(loaded[key], value, rtol=1e-6, atol=1e-7, msg=key)


@pytest.mark.networks
@torch.inference_mode()
def test_branches_are_rlls_auxiliary_heads_without_their_last_layer(trained: BNInception) -> None:
    maps: dict[str, Tensor] = {}
    for name in ("inception_3c_output", "loss1_output", "inception_4e_output", "loss2_output"):
        trained.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: maps.update({name: output}))
    pixels = 255 * torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(1)) - 117
    features = trained(pixels)
    trunk = BNInception(num_classes=0).eval()
    trunk.load_state_dict({key: value for key, value in trained.state_dict().items() if not key.startswith("loss")})
    assert torch.equal(features, trunk(pixels))
    for branch, block in (("loss1", "inception_3c_output"), ("loss2", "inception_4e_output")):
        head = AuxiliaryHead(tuple(maps[block].shape[1:]), embed_dim=1024).eval()
        nn.init.eye_(head.embedding.weight)
        nn.init.zeros_(head.embedding.bias)
        layers = {"conv": "reduction", "conv_bn": "reduction_norm", "fc": "hidden", "fc_bn": "hidden_norm"}
        for ours, theirs in layers.items():
            state = trained.get_submodule(f"{branch}_{ours}").state_dict()
            module = head.get_submodule(theirs)
            module.load_state_dict({key: value for key, value in state.items() if key in module.state_dict()})
        output = maps[f"{branch}_output"]
        assert output.shape == (2, 1024, 1, 1)
        torch.testing.assert_close(output.flatten(1), head(maps[block]), rtol=1e-4, atol=1e-4)


@pytest.mark.networks
def test_only_the_last_layers_of_the_branches_are_new() -> None:
    model = instantiate(compose("model=bn_inception_branches", "model.embed_dim=8", "transform.size=64").model)
    assert {type(head) for head in model.heads.values()} == {PoolHead}
    assert [(name, p.shape) for name, p in model.heads.named_parameters()] == [
        (f"{head}.embedding.weight", (8, 1024)) for head in "LMH"
    ]
    trained = {name for name, p in model.backbone.named_parameters() if p.requires_grad}
    assert {f"network.loss{i}_{layer}.weight" for i in (1, 2) for layer in ("conv", "fc")} <= trained
    assert not {name for name in trained if "_bn." in name}  # freeze_batchnorm=all
    assert model.backbone.mean.flatten().tolist() == [104.0, 117.0, 123.0]


@pytest.mark.networks
def test_a_file_without_the_branches_is_refused_if_they_are_asked_for(tmp_path: Path, trained: BNInception) -> None:
    layers = {name: arrays for name, arrays in released_layers(trained).items() if not name.startswith("loss1")}
    path = write(tmp_path / "trunk.caffemodel", layers)
    networks.bn_inception(str(path))
    with pytest.raises(InputError, match=rf"{path}: weights of another .*: 12 keys missing, .* such as loss1_conv"):
        networks.bn_inception(str(path), branches=True)
    torch.save(BNInception().state_dict(), tmp_path / "file.pth")
    with pytest.raises(InputError, match=r"24 keys missing, 0 unknown .* such as loss1_conv"):
        networks.bn_inception(str(tmp_path / "file.pth"), branches=True)


SMALL = {
    "conv1/7x7_s2": [torch.arange(12.0).reshape(3, 1, 2, 2)],
    "conv1/7x7_s2/bn": [torch.ones(3), torch.full((3,), 4.0), torch.tensor([2.0])],
    "conv1/7x7_s2/bn/sc": [torch.ones(3), torch.zeros(3)],
    "loss3/classifier": [torch.ones(2, 3), torch.ones(2)],
}


@pytest.mark.parametrize("form", ["layer", "layers", "double"])
def test_blobs_become_weights(tmp_path: Path, form: str) -> None:
    state = read_caffemodel(write(tmp_path / "small.caffemodel", SMALL, form))
    assert {key: value.tolist() for key, value in state.items() if value.ndim == 1} == {
        "conv1_7x7_s2.bias": [0.0] * 3,
        "conv1_7x7_s2_bn.running_mean": [0.5] * 3,
        "conv1_7x7_s2_bn.running_var": [2.0] * 3,
        "conv1_7x7_s2_bn.weight": [1.0] * 3,
        "conv1_7x7_s2_bn.bias": [0.0] * 3,
        "loss3_classifier.bias": [1.0] * 2,
    }
    assert torch.equal(state["conv1_7x7_s2.weight"], SMALL["conv1/7x7_s2"][0])
    assert all(value.dtype == torch.float32 for value in state.values())


def test_statistics_that_were_never_computed_are_0_as_in_caffe(tmp_path: Path) -> None:
    layers = {"a/bn": [torch.ones(2), torch.ones(2), torch.zeros(1)]}
    assert read_caffemodel(write(tmp_path / "a.caffemodel", layers))["a_bn.running_var"].tolist() == [0.0, 0.0]


def test_a_damaged_file_is_refused_or_read(tmp_path: Path) -> None:
    """Cut anywhere, or with any one byte changed, it raises nothing but one line that names it."""
    path = write(tmp_path / "small.caffemodel", SMALL)
    content, draw, refused = path.read_bytes(), random.Random(0), 0
    cut = [content[:length] for length in range(len(content))]
    places = [draw.randrange(len(content)) for _ in range(400)]
    changed = [content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :] for place in places]
    for damaged in [*cut, *changed, b"\xff" * 50, bytes(50)]:
        path.write_bytes(damaged)
        try:
            read_caffemodel(path)
        except InputError as error:
            assert re.fullmatch(rf"{path}: not a readable \.caffemodel of BN-Inception \(.*\)", str(error))  # noqa: PT017
            refused += 1
    assert refused > len(cut) / 2
