from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from huggingface_hub.errors import LocalEntryNotFoundError
from torch import Tensor, nn

from dml.models import networks
from dml.models.backbone import Backbone
from dml.models.bn_inception import BNInception
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.runtime.errors import InputError

pytestmark = pytest.mark.networks

Build = Callable[[], nn.Module]
Load = Callable[[str | None], Backbone]

IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
SYMMETRIC = torch.full((2, 3), 0.5)


def googlenet(aux_logits: bool = True) -> nn.Module:
    return torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=aux_logits)


FAMILIES: dict[str, tuple[Build, Load, Tensor, int, str]] = {
    # the library's whole network, ours, mean and standard deviation, size of the features, classifier
    "resnet18": (
        lambda: torchvision.models.resnet18(weights=None),
        lambda weights: networks.resnet("resnet18", weights),
        IMAGENET,
        512,
        "fc",
    ),
    "googlenet": (googlenet, networks.googlenet, SYMMETRIC, 1024, "fc"),
    "branched_googlenet": (googlenet, networks.branched_googlenet, SYMMETRIC, 1024, "fc"),
    "bn_inception": (
        lambda: BNInception(1000),
        networks.bn_inception,
        torch.tensor([[104 / 255, 117 / 255, 128 / 255], [1 / 255] * 3]),
        1024,
        "last_linear",
    ),
    "resnet10t": (
        lambda: timm.create_model("resnet10t"),
        lambda weights: networks.timm_backbone("resnet10t", weights),
        IMAGENET,
        512,
        "fc",
    ),
    "convnext_atto": (
        lambda: timm.create_model("convnext_atto"),
        lambda weights: networks.timm_backbone("convnext_atto", weights),
        IMAGENET,
        320,
        "head.fc",
    ),
}


def of_library(name: str) -> str:
    """What the library calls the network."""
    return name.removeprefix("branched_")


def images() -> Tensor:
    return torch.randint(0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0)).float()


def whole_network(name: str) -> nn.Module:
    """With random weights that keep the maps' scale, and statistics as no constructor gives them."""
    return deepcopy(build_whole_network(name))


@cache
def build_whole_network(name: str) -> nn.Module:
    torch.manual_seed(1)
    network = FAMILIES[name][0]().eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network


def assert_same_features(name: str, backbone: Backbone, network: nn.Module) -> None:
    """``network`` without its classifier gives the features of ``backbone``."""
    *path, last = FAMILIES[name][4].split(".")
    setattr(network.get_submodule(".".join(path)), last, nn.Identity())
    mean, std = FAMILIES[name][2][..., None, None]
    pixels = images().flip(1) if name == "bn_inception" else images()
    expected = network((pixels / 255 - mean) / std)
    features, _ = backbone.eval()(images())
    assert features.shape == (2, FAMILIES[name][3])
    assert (expected[0] - expected[1]).abs().max() > 0.05 * expected.abs().max()  # the images matter
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_of_the_library_gives_its_outputs(tmp_path: Path, name: str) -> None:
    network = whole_network(name)
    torch.save(network.state_dict(), tmp_path / "file.pth")
    assert_same_features(name, FAMILIES[name][1](str(tmp_path / "file.pth")), network)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["resnet18", "bn_inception"])
def test_an_old_file_from_caffe_gives_its_outputs(tmp_path: Path, name: str) -> None:
    network = whole_network(name)
    norms = {path for path, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    old = {
        key: value[None] if key.rpartition(".")[0] in norms else value
        for key, value in network.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save(old, tmp_path / "file.pth")
    assert_same_features(name, FAMILIES[name][1](str(tmp_path / "file.pth")), network)


@pytest.mark.parametrize("name", FAMILIES)
def test_packaged_weights_that_do_not_exist(name: str) -> None:
    with pytest.raises(InputError, match=f"weights=packaged: no package contains weights for {of_library(name)}, only"):
        FAMILIES[name][1]("packaged")


@pytest.mark.parametrize("name", FAMILIES)
def test_settings_reach_the_backbone(name: str) -> None:
    build = {
        "resnet18": networks.resnet,
        "resnet10t": networks.timm_backbone,
        "convnext_atto": networks.timm_backbone,
    }
    arguments = [name] if name in build else []
    backbone = build.get(name, getattr(networks, name, None))(
        *arguments,
        mean=(1, 2, 3),
        std=(1, 1, 1),
        scale=1,
        channels="rgb",
        freeze_batchnorm="all",
        channels_last=False,
    )
    assert backbone.mean.flatten().tolist() == [1, 2, 3]
    assert backbone.freeze_batchnorm == "all"
    assert backbone.memory_format == torch.contiguous_format


# downloads


def no_torchvision_network(*args: Any, **kwargs: Any) -> Mapping[str, Tensor]:
    raise URLError(OSError("Temporary failure in name resolution"))


def no_hub(*args: Any, **kwargs: Any) -> Mapping[str, Tensor]:
    raise LocalEntryNotFoundError("cannot find the file on the Hub\nnor in the cache")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_torchvision_network)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_url", no_torchvision_network)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", no_hub)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["resnet18", "googlenet", "branched_googlenet", "resnet10t", "convnext_atto"])
def test_a_download_without_a_network(name: str) -> None:
    with pytest.raises(InputError) as raised:
        FAMILIES[name][1]("download")
    message = str(raised.value)
    assert f"weights=download: the weights of {of_library(name)} could not be fetched" in message
    assert "model.backbone.weights=/path/to/file.pth" in message
    assert "\n" not in message


@pytest.mark.parametrize("error", [RuntimeError("invalid hash value"), UnpicklingError("invalid load key"), EOFError()])
def test_a_damaged_download_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", load)
    with pytest.raises(InputError, match=r"the file of resnet18 in .*/checkpoints can't be read; delete it"):
        FAMILIES["resnet18"][1]("download")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["resnet18", "googlenet", "branched_googlenet"])
def test_a_download_from_torchvision(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    network = whole_network(name)
    asked: list[str] = []

    def fetch(url: str, **kwargs: Any) -> Mapping[str, Tensor]:
        asked.append(url)
        return network.state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    backbone = FAMILIES[name][1]("download")
    assert [url.rpartition("/")[2].partition("-")[0] for url in asked] == [of_library(name)]
    assert_same_features(name, backbone, network)


# names


def test_timm_has_no_such_model() -> None:
    with pytest.raises(InputError, match=r"name=resnet18x: timm has no such model; nearest: .*\bresnet18\b"):
        networks.timm_backbone("resnet18x")
    with pytest.raises(InputError, match=r"name=§: timm has no such model$"):
        networks.timm_backbone("§")


def test_only_resnets_are_resnets() -> None:
    """Another network would keep its classifier, under another name than fc."""
    with pytest.raises(InputError, match=r"model\.backbone\.name=squeezenet1_0: must be one of torchvision's ResNets"):
        networks.resnet("squeezenet1_0")


def test_googlenet_has_no_auxiliary_classifiers() -> None:
    assert not [key for key in networks.googlenet().state_dict() if "aux" in key]


@torch.inference_mode()
def test_googlenets_branches_give_what_their_last_layers_took(tmp_path: Path) -> None:
    network = whole_network("googlenet")
    torch.save(network.state_dict(), tmp_path / "file.pth")
    backbone = networks.branched_googlenet(str(tmp_path / "file.pth")).eval()
    backbone.tap({"L": "aux1", "M": "aux2", "A": "inception4a", "D": "inception4d"})
    _, maps = backbone(images())
    for head, branch, tapped in (("L", network.aux1, "A"), ("M", network.aux2, "D")):
        expected: list[Tensor] = []
        branch.fc2.register_forward_pre_hook(lambda _, inputs, expected=expected: expected.append(inputs[0]))
        branch(maps[tapped])
        assert maps[head].shape == (2, 1024, 1, 1)
        torch.testing.assert_close(maps[head].flatten(1), expected[0], rtol=1e-5, atol=1e-5)


def untrained(branches: bool) -> dict[str, Tensor]:
    """As torchvision's file: the branches' statistics are those of a network that has seen no image."""
    state = whole_network("googlenet").state_dict()
    aux = {key: value for key, value in googlenet().state_dict().items() if key.startswith("aux")}
    return {key: value for key, value in (state | aux).items() if branches or key not in aux}


@pytest.mark.parametrize("branches", [True, False])
def test_branches_that_were_never_trained_are_told(
    branches: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(untrained(branches), tmp_path / "file.pth")
    networks.branched_googlenet(str(tmp_path / "file.pth"))
    assert caplog.messages == [
        f"model.backbone.weights={tmp_path}/file.pth: the auxiliary branches of these weights were never trained; "
        "the branches that heads L and M tap begin with random weights"
    ]
    if branches:
        caplog.clear()
        torch.save(whole_network("googlenet").state_dict(), tmp_path / "file.pth")
        networks.branched_googlenet(str(tmp_path / "file.pth"))
        assert caplog.messages == []


def test_a_transformer_is_fitted_to_the_size_of_the_images() -> None:
    def build(name: str) -> EmbeddingModel:
        backbone = networks.timm_backbone(name)
        return EmbeddingModel(
            backbone, taps={"H": "norm"}, head={"H": PoolHead}, heads=["H"], embed_dim=4, image_size=64
        )

    assert build("vit_tiny_patch16_224")(torch.zeros(2, 3, 64, 64))["H"].shape == (2, 4)
    with pytest.raises(InputError, match=r"transform.size=64: ConVit can't take images of this size"):
        build("convit_tiny")


# options of timm's networks


def test_drop_path_grows_from_block_to_block() -> None:
    network: Any = networks.timm_backbone("test_vit", drop_path_rate=0.25).network
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in network.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    network.eval()
    plain: Any = networks.timm_backbone("test_vit").network.eval()
    plain.load_state_dict(network.state_dict())
    batch = torch.rand(1, 3, 160, 160)
    torch.testing.assert_close(plain(batch), network(batch))
    with pytest.raises(InputError, match=r"model.backbone.drop_path_rate=2: must be a finite number from 0 to 1"):
        networks.timm_backbone("test_vit", drop_path_rate=2)


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("test_vit", {"patch_embed.proj.weight", "patch_embed.proj.bias"}),
        ("test_convnext", {"stem.0.weight", "stem.0.bias"}),
        ("test_resnet", {"conv1.0.weight"}),
    ],
)
def test_the_patch_embedding_can_be_frozen(name: str, frozen: set[str]) -> None:
    network = networks.timm_backbone(name, freeze_patch_embedding=True).network
    assert {path for path, parameter in network.named_parameters() if not parameter.requires_grad} == frozen


@pytest.mark.parametrize("name", ["test_convnext", "test_efficientnet", "test_vit", "swin_tiny_patch4_window7_224"])
def test_layers_are_numbered_without_gaps(name: str) -> None:
    backbone = networks.timm_backbone(name)
    parameters = backbone.layered_parameters
    assert [id(parameter) for parameter in parameters] == [id(parameter) for parameter in backbone.parameters()]
    assert sorted(set(parameters.layers)) == list(range(max(parameters.layers) + 1))
    assert parameters.layers[0] == 0
    last_stage = [i for path, i in backbone.layers.items() if path.startswith(f"{backbone.stages[-1]}.")]
    assert max(last_stage) == max(parameters.layers)
    assert networks.googlenet().layered_parameters.layers == []
