from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import Tensor, nn

from dml.models.adapters import LoRA
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.folding import FoldedConvolution, FoldedNorm, fold_batchnorms, unfold_batchnorms
from dml.models.heads import PoolHead
from dml.models.networks import bn_inception, googlenet, resnet, timm_backbone
from dml.runtime.errors import InputError

pytestmark = pytest.mark.networks

NETWORKS: dict[str, Callable[..., Backbone]] = {
    "tf_efficientnet_lite0": lambda **settings: timm_backbone("tf_efficientnet_lite0", **settings),
    "timm's resnet18": lambda **settings: timm_backbone("resnet18", **settings),
    "torchvision's resnet18": lambda **settings: resnet("resnet18", **settings),
    "googlenet": googlenet,
    "bn_inception": bn_inception,
}


def randomize(network: nn.Module) -> None:
    """Give each normalization statistics, scales and shifts of its own."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.bias):
                values.data.normal_(std=0.2)  # type: ignore[union-attr]  # these have both
            for values in (module.running_var, module.weight):
                values.data.uniform_(0.5, 1.5)  # type: ignore[union-attr]


def build(name: str, **settings: Any) -> Backbone:
    torch.manual_seed(0)
    backbone = NETWORKS[name](weights=None, channels_last=False, **settings).double()
    randomize(backbone)
    return backbone.train()


def count(network: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in network.modules())


def outputs_and_gradients(backbone: Backbone) -> tuple[Tensor, dict[str, Tensor]]:
    images = torch.randint(0, 256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(2)).double()
    torch.manual_seed(3)  # GoogLeNet has dropout
    features, _ = backbone(images)
    trained = {name: value for name, value in backbone.named_parameters() if value.requires_grad}
    gradients = torch.autograd.grad(features.square().sum(), [*trained.values()], allow_unused=True)
    return features.detach(), {n: g for n, g in zip(trained, gradients, strict=True) if g is not None}


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("size", [(8, 8), (9, 8), (7, 7), (1, 2)])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 1), (5, 3, 1), (4, 2, 1), (3, 1, 1), (3, 2, 2)]
)
def test_padding_as_tensorflow_without_a_copy_of_the_map(
    kernel: int, stride: int, dilation: int, size: tuple[int, int], groups: int
) -> None:
    torch.manual_seed(0)
    convolution = Conv2dSame(4, 8, kernel, stride, dilation=dilation, groups=groups, bias=False).double()
    network = nn.Sequential(convolution, nn.BatchNorm2d(8)).double()
    randomize(network)
    network.eval()
    images = torch.randn(2, 4, *size, dtype=torch.float64)
    plain = network(images)
    assert fold_batchnorms(network) == 1
    with torch.no_grad():
        torch.testing.assert_close(network(images), plain.detach())
    torch.testing.assert_close(network(images), plain)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("freeze", ["all", "statistics"])
def test_a_folded_network_computes_the_same(name: str, freeze: str) -> None:
    plain, folded = (build(name, freeze_batchnorm=freeze, fold_batchnorm=fold) for fold in (False, True))
    folded.tap({})
    assert count(folded, FoldedConvolution) == count(folded, FoldedNorm) == count(plain, nn.BatchNorm2d) > 15
    assert folded.state_dict().keys() == plain.state_dict().keys()
    (features, gradients), (expected, expected_gradients) = map(outputs_and_gradients, (folded, plain))
    torch.testing.assert_close(features, expected, rtol=1e-9, atol=1e-12)
    largest = max(value.abs().max().item() for value in expected_gradients.values())
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-7, atol=1e-12 * largest)


class Network(nn.Module):
    """A convolution whose output is used twice, one that is called twice, and two that can be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.twice_used, self.first = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.twice_called, self.second = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.third = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4, affine=False)
        )
        self.fourth = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        maps = self.twice_used(images)
        maps = maps + self.first(maps)
        maps = self.second(self.twice_called(self.twice_called(maps)))
        return self.fourth(self.third(maps)).mean(dim=(2, 3))  # type: ignore[no-any-return]


def folded_names(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if isinstance(module, FoldedConvolution)]


def test_only_a_convolution_with_one_use_is_folded() -> None:
    torch.manual_seed(0)
    network, images = Network().double(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    network.train()(images)  # statistics of its own
    expected = network.eval()(images)
    assert fold_batchnorms(network) == 2
    assert folded_names(network) == ["third.0", "fourth.0"]
    torch.testing.assert_close(network(images), expected, rtol=1e-12, atol=1e-12)
    assert fold_batchnorms(network, tapped=["fourth.0"]) == 1
    assert folded_names(network) == ["third.0"]
    unfold_batchnorms(network)
    assert folded_names(network) == []
    assert torch.equal(network(images), expected)


def test_a_normalization_that_learns_its_statistics_is_computed_as_ever() -> None:
    torch.manual_seed(0)
    plain = Network()
    folded = deepcopy(plain)
    fold_batchnorms(folded)
    images = torch.randn(2, 3, 6, 6)
    assert torch.equal(folded.train()(images), plain.train()(images))
    assert all(map(torch.equal, folded.state_dict().values(), plain.state_dict().values()))


def test_a_copy_has_its_own_normalizations() -> None:
    network, images = Network().eval(), torch.randn(2, 3, 6, 6)
    fold_batchnorms(network)
    before, copied = network(images), deepcopy(network)
    copied.fourth[1].running_mean.fill_(-5.0)  # type: ignore[union-attr]
    assert torch.equal(network(images), before)
    assert not torch.equal(copied(images), before)


def test_maps_of_normalizations_and_convolutions_can_be_tapped() -> None:
    taps = {"L": "layer1.0.conv1", "M": "layer2.0.bn1", "H": "layer4"}
    maps = []
    for fold in (False, True):
        backbone = build("timm's resnet18", fold_batchnorm=fold).eval()
        backbone.tap(taps)
        maps.append(backbone(torch.full((1, 3, 64, 64), 9.0).double())[1])
    assert "layer1.0.conv1" not in folded_names(backbone.network)
    torch.testing.assert_close(maps[1], maps[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("channels_last", [True, False])
def test_maps_keep_their_memory_format(channels_last: bool) -> None:
    backbone = timm_backbone("resnet18", channels_last=channels_last, fold_batchnorm=True).eval()
    backbone.tap({"H": "layer4.1.bn1"})
    (value,) = backbone(torch.full((2, 3, 96, 96), 9.0))[1].values()
    assert value.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert value.is_contiguous() is not channels_last


def test_an_adapter_changes_a_folded_network_as_any_other() -> None:
    pytest.importorskip("peft")
    embeddings = []
    for fold in (False, True):
        backbone = build("timm's resnet18", freeze_batchnorm="all", fold_batchnorm=fold).float()
        model = EmbeddingModel(
            backbone, taps={"H": "layer4"}, head={"H": PoolHead}, heads=["H"], embed_dim=4, image_size=64
        )
        LoRA(rank=2, target_modules=["conv1"])(model)
        torch.manual_seed(3)
        for name, value in model.named_parameters():
            if ".lora_" in name or "heads" in name:
                nn.init.normal_(value, std=0.1)
        embeddings.append(model.eval()(torch.full((2, 3, 64, 64), 9.0))["H"])
        assert len(folded_names(backbone.network)) == (11 if fold else 0)  # of 20, nine have an update
    torch.testing.assert_close(embeddings[1], embeddings[0], rtol=1e-4, atol=1e-5)


class Undecided(nn.Module):
    """Calls its convolution or not, depending on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images) if images.sum() > 0 else images


def test_a_network_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(InputError, match=r"model.backbone.fold_batchnorm=true: Undecided can't be traced .*; give fal"):
        fold_batchnorms(Undecided())
