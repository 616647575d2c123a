from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from dml.models.backbone import CHANNELS_LAST, Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.models.networks import timm_backbone
from dml.runtime.errors import InputError

PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


class Network(nn.Module):
    """Two normalized convolutions of 3 to 4 to 5 channels, each halving the map."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 5, 3, stride=2), nn.BatchNorm2d(5), nn.ReLU())
        self.vector = nn.BatchNorm1d(5)

    def forward(self, images: Tensor) -> Tensor:
        return self.vector(self.second(self.first(images)).mean(dim=(2, 3)))


class Pixels(nn.Module):
    """Returns what it is given."""

    def forward(self, images: Tensor) -> Tensor:
        return images


def images(count: int = 4, size: int = 16, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(seed)).float()


def backbone(**settings: Any) -> Backbone:
    torch.manual_seed(0)
    return Backbone(Network(), **{**PLAIN, **settings})


# pixels


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PLAIN, [0, 0.2, 1]),
        ({"mean": (0.5, 0.1, 0.0), "std": (0.5, 0.1, 2.0)}, [-1, 1, 0.5]),
        ({"mean": (104, 117, 128), "std": (1, 1, 1), "scale": 1.0, "channels": "bgr"}, [151, -66, -128]),
        ({"mean": (1, 1, 5), "std": (2, 5, 0.5), "scale": 51.0}, [-0.5, 0, 0]),
        ({"mean": (1, 1, 5), "std": (2, 5, 0.5), "scale": 51.0, "channels": "bgr"}, [2, 0, -10]),
    ],
)
def test_pixels_computed_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    """Of a pixel of red 0, green 51 and blue 255."""
    pixel = torch.tensor([0.0, 51.0, 255.0]).view(1, 3, 1, 1)
    seen, _ = Backbone(Pixels(), **settings)(pixel)
    torch.testing.assert_close(seen.flatten(), torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-5)


def test_images_are_left_as_they_are() -> None:
    given = images()
    backbone(channels="bgr", mean=(0.5,) * 3)(given)
    assert torch.equal(given, images())


# batch normalization


def norms(network: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, module in network.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for key, value in module.state_dict().items()
    }


def train_steps(network: Backbone) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(3):
        network.train()
        features, _ = network(images(seed=step))
        optimizer.zero_grad()
        features.square().sum().backward()
        optimizer.step()
        network.eval()  # as a validation in between does


@pytest.mark.parametrize(
    ("freeze", "endings"), [("all", ()), ("statistics", ("weight", "bias")), (None, ("",))], ids=["all", "some", "none"]
)
def test_what_training_steps_change_of_batchnorm(freeze: Any, endings: tuple[str, ...]) -> None:
    network = backbone(freeze_batchnorm=freeze)
    before, weights = norms(network), network.network.first[0].weight.detach().clone()
    train_steps(network)
    assert len(before) == 15
    changed = {key for key, value in norms(network).items() if not torch.equal(value, before[key])}
    assert changed == {key for key in before if key.endswith(endings)}
    assert not torch.equal(network.network.first[0].weight, weights)
    network.train()
    assert network.training
    assert network.network.first.training


@pytest.mark.parametrize("setting", [{"channels": "rbg"}, {"freeze_batchnorm": "scale"}, {"freeze_batchnorm": ["all"]}])
def test_an_unknown_choice_is_named(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"^model\.backbone\.{next(iter(setting))}=.*: must be "):
        backbone(**setting)


def test_frozen_from_the_start() -> None:
    network = backbone(freeze_batchnorm="all")
    before = norms(network)
    network(images())  # nobody called train()
    torch.testing.assert_close(norms(network), before, rtol=0, atol=0)


@pytest.mark.parametrize("frozen", ["all", "statistics"])
def test_frozen_batchnorm_trains_as_it_evaluates(frozen: str) -> None:
    network = backbone(freeze_batchnorm=frozen)
    torch.testing.assert_close(network.train()(images())[0], network.eval()(images())[0], rtol=0, atol=0)


@pytest.mark.parametrize("frozen", ["all", "statistics", None])
def test_norms_are_untrained_while_they_are_frozen_at_random_weights(frozen: str | None) -> None:
    backbone = Backbone(Network(), freeze_batchnorm=frozen, **PLAIN)
    assert backbone.has_untrained_norms is (frozen is not None)
    assert Backbone(Network(), **PLAIN).requires_grad_(False).has_untrained_norms  # the heads alone are trained
    assert not Backbone(nn.Sequential(nn.Conv2d(3, 4, 3)), freeze_batchnorm=frozen, **PLAIN).has_untrained_norms
    trained = Backbone(Network(), **PLAIN)
    trained(images())
    backbone.load_state_dict(trained.state_dict())
    assert not backbone.has_untrained_norms


def test_timms_own_batchnorm_is_frozen_too() -> None:
    network = timm_backbone("tf_efficientnet_lite0", freeze_batchnorm="all")
    before = {key: value.clone() for key, value in network.state_dict().items() if "running" in key}
    network.train()(images(size=32))
    assert len(before) > 50
    torch.testing.assert_close({key: network.state_dict()[key] for key in before}, before, rtol=0, atol=0)


# memory format


@pytest.mark.parametrize("channels_last", [True, False])
def test_memory_format_of_parameters_and_maps(channels_last: bool) -> None:
    network = backbone(channels_last=channels_last)
    network.tap({"H": "second.0"})
    _, maps = network(images())
    weights = [p for p in network.parameters() if p.ndim == 4]
    assert len(weights) == 2
    for value in (*weights, maps["H"]):
        assert value.is_contiguous(memory_format=torch.channels_last) is channels_last
        assert value.is_contiguous() is not channels_last


# taps


def test_taps_are_the_modules_outputs() -> None:
    network = backbone().eval()
    network.tap({"L": "first", "H": "second.0"})
    features, maps = network(images())
    first = network.network.first(images() / 255)
    second = network.network.second[0](first)
    assert maps.keys() == {"L", "H"}
    torch.testing.assert_close(maps["L"], first)
    torch.testing.assert_close(maps["H"], second)
    torch.testing.assert_close(features, network.network(images() / 255))


@pytest.mark.parametrize(("path", "nearest"), [("frist", "first"), ("second.O", "second.0"), ("secnd", "second")])
def test_an_unknown_tap_names_the_nearest(path: str, nearest: str) -> None:
    with pytest.raises(InputError, match=rf"model\.taps\.H={path}: no such module; nearest: .*\b{nearest}\b"):
        backbone().tap({"H": path})


def test_no_map_of_a_failed_call_reaches_the_next() -> None:
    network = backbone().eval()
    network.tap({"L": "first", "H": "second"})
    with pytest.raises(RuntimeError):
        network(images(size=4))  # the second convolution finds no room
    with torch.no_grad():
        _, maps = network(images(2))
    assert {name: len(tapped) for name, tapped in maps.items()} == {"L": 2, "H": 2}


def test_a_copy_is_independent() -> None:
    network = backbone(freeze_batchnorm="all")
    network.tap({"H": "second.0"})
    copy = deepcopy(network)
    with torch.no_grad():
        copy.network.second[0].weight.zero_()
        copy.network.second[0].bias.zero_()
    _, copied = copy(images())
    _, maps = network(images())
    assert network._tapped_maps == copy._tapped_maps == {}
    assert (copied["H"] == 0).all()
    assert (maps["H"] != 0).any()
    copy.train()
    assert not copy.network.second[1].training


# transformers


def test_tokens_become_the_grid_of_patches() -> None:
    """A ViT's map holds the patch tokens, without the class token, where their patches are."""
    network = timm_backbone("vit_tiny_patch16_224").eval()
    network.tap({"H": "blocks.0", "E": "patch_embed"})
    tokens: list[Tensor] = []
    network.network.blocks[0].register_forward_hook(lambda module, inputs, output: tokens.append(output))
    _, maps = network(images(1, 224))
    assert maps["H"].shape == (1, 192, 14, 14)
    assert torch.equal(maps["H"][0, :, 2, 5], tokens[0][0, 1 + 2 * 14 + 5])


@pytest.mark.networks
def test_channels_last_maps_are_turned() -> None:
    network = timm_backbone("swin_tiny_patch4_window7_224").eval()
    network.tap({"M": "layers.2"})
    stages: list[Tensor] = []
    network.network.layers[2].register_forward_hook(lambda module, inputs, output: stages.append(output))
    _, maps = network(images(1, 224))
    assert maps["M"].shape == (1, 384, 14, 14)
    assert torch.equal(maps["M"][0, :, 3, 7], stages[0][0, 3, 7])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convnext_atto"])
@pytest.mark.networks
def test_timms_stages_can_be_tapped(name: str) -> None:
    network = timm_backbone(name)
    assert set(network.stages) <= {path for path, _ in network.network.named_modules()}
    assert len(network.stages) >= 3
    config = timm.get_pretrained_cfg(name)
    assert network.mean.flatten().tolist() == pytest.approx([255 * value for value in config.mean])
    assert network.std.flatten().tolist() == pytest.approx([255 * value for value in config.std])


def final_tokens(network: Backbone, batch: Tensor) -> Tensor:
    """What timm's own `forward_features` gives, with the norm that EVA-02 applies behind its pool."""
    inner: Any = network.network
    pixels = (batch - network.mean) / network.std
    normed = inner.forward_features(pixels)
    return inner.fc_norm(normed) if isinstance(inner.norm, nn.Identity) else normed


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "prefix"),
    [("test_vit", 1), ("vit_tiny_patch16_dinov3_qkvb", 5), ("eva02_tiny_patch14_224", 1), ("test_vit2", 1)],
)
def test_tokens_and_patches_are_those_after_the_final_norm(name: str, prefix: int) -> None:
    network = timm_backbone(name, any_size=True).eval()
    for module in network.network.modules():
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            nn.init.uniform_(module.weight, 0.5, 2)
    has_class = name != "test_vit2"
    network.tap({"P": "patches", **({"T": "tokens"} if has_class else {})})
    batch = images(2, 56)
    _, maps = network(batch)
    expected = final_tokens(network, batch)
    assert expected.shape[1] == prefix + 16
    assert maps["P"].shape == (2, expected.shape[2], 4, 4)
    torch.testing.assert_close(maps["P"][1, :, 2, 3], expected[1, prefix + 2 * 4 + 3])
    if has_class:  # the class token, and the patches without the register tokens
        assert maps["T"].shape == (2, 17, expected.shape[2])
        torch.testing.assert_close(maps["T"][:, 0], expected[:, 0])
        torch.testing.assert_close(maps["T"][:, 1:], expected[:, prefix:])


@torch.no_grad()
@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_pooled_features_can_be_tapped(name: str) -> None:
    network = timm_backbone(name).eval()
    network.tap({"H": "pooled"})
    features, maps = network(images(2, 160))
    assert torch.equal(maps["H"][:, :, 0, 0], features)
    assert maps["H"].shape == (*features.shape, 1, 1)
    network.tap({})
    assert network(images(2, 160))[1] == {}


@pytest.mark.parametrize(
    ("name", "tap", "message"),
    [
        (
            "test_convnext",
            "tokens",
            "H=tokens: ConvNeXt has no tokens that can be tapped; tap a stage or pooled",
        ),
        ("test_resnet", "patches", "model.taps.H=patches: ResNet has no tokens"),
        (
            "test_vit2",
            "tokens",
            "model.taps.H=tokens: VisionTransformer has no class token here; tap patches or pooled",
        ),
    ],
)
def test_networks_without_such_tokens(name: str, tap: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        timm_backbone(name).tap({"H": tap})


class VOLO(nn.Module):
    """Stands in for timm's network of this name, whose stages give (B, h, w, C)."""

    feature_info = ({"num_chs": 5},)

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Linear(3, 5)
        self.neck = nn.Conv2d(5, 7, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.neck(self.stage(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)).mean((2, 3))


def test_maps_whose_channels_come_last_are_turned() -> None:
    backbone = Backbone(VOLO(), mean=(0.5,) * 3, std=(0.5,) * 3)
    backbone.tap({"H": "stage", "M": "neck"})
    maps = backbone(torch.zeros(2, 3, 8, 6))[1]
    assert (maps["H"].shape, maps["M"].shape) == ((2, 5, 8, 6), (2, 7, 8, 6))
    assert {timm.models.volo.VOLO.__name__, timm.models.vision_transformer_sam.VisionTransformerSAM.__name__} == {
        *CHANNELS_LAST
    }


class Several(nn.Module):
    """A network whose stage gives two maps at once, as HRNet's do."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.ModuleDict({"both": _Both()})
        self.num_features = 3

    def forward(self, images: Tensor) -> Tensor:
        return self.stage["both"](images)[0].mean((2, 3))


class _Both(nn.Module):
    def forward(self, images: Tensor) -> list[Tensor]:
        return [images, images[:, :, ::2, ::2]]


def test_a_stage_of_several_maps_is_refused() -> None:
    backbone = Backbone(Several(), mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(InputError, match=r"model\.taps\.H=stage\.both: this module's output isn't a map"):
        EmbeddingModel(backbone, taps={"H": "stage.both"}, head={"H": PoolHead}, heads=["H"], image_size=8)
