"""What learns with each adapter, and what an update of LoRA computes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from gloo import on_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dml.models.adapters import BitFit, LastBlocks, LoRA, NormOnly, merge_updates
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.models.networks import resnet, timm_backbone
from dml.models.small_cnn import small_cnn
from dml.runtime.errors import InputError
from dml.training.gradient_cache import check_chunk_size, embed_in_chunks
from dml.training.optimizers import optimizer_by_role


def embed(backbone: Backbone, tap: str, image_size: int = 32) -> EmbeddingModel:
    return EmbeddingModel(
        backbone, taps={"H": tap}, head={"H": PoolHead}, heads=["H"], embed_dim=4, image_size=image_size
    )


def transformer(tap: str = "patches", **settings: Any) -> EmbeddingModel:
    torch.manual_seed(0)
    return embed(timm_backbone("test_vit", any_size=True, **settings), tap)


class Cells(nn.Sequential):
    """Two convolutions with their norms, a convolution with groups, and a linear layer of channels."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6))
        self.append(nn.Conv2d(6, 6, 1, groups=3))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).mean(dim=(2, 3))


def cells(tap: str = "4", **settings: Any) -> EmbeddingModel:
    torch.manual_seed(0)
    layers = {name: int(name[0]) // 2 for name, _ in Cells().named_parameters()}
    return embed(Backbone(Cells(), mean=(0.5,) * 3, std=(0.5,) * 3, layers=layers, **settings), tap, 12)


def trained(model: EmbeddingModel) -> set[str]:
    return {name for name, parameter in model.backbone.network.named_parameters() if parameter.requires_grad}


def learn(model: EmbeddingModel) -> EmbeddingModel:
    """Give what learns other values, as a step does."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def photos(size: int = 32, count: int = 4) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(1)).float()


def test_what_learns_in_a_transformer() -> None:
    everything = trained(transformer())
    model = transformer()
    BitFit()(model)
    assert trained(model) == {name for name in everything if name.endswith("bias")}
    model = transformer()
    NormOnly()(model)
    assert trained(model) == {name for name in everything if "norm" in name}
    model = transformer()
    LastBlocks(2)(model)
    assert trained(model) == {name for name in everything if name.startswith(("blocks.4.", "blocks.5.", "norm."))}
    model = transformer("blocks.2")
    LastBlocks(1)(model)  # counted from the last block that a head uses
    assert trained(model) == {name for name in everything if name.startswith("blocks.2.")}
    assert all(parameter.requires_grad for parameter in model.heads.parameters())


def test_the_blocks_of_a_resnet() -> None:
    model = embed(resnet("resnet18", freeze_batchnorm="all"), "layer4")
    LastBlocks(1)(model)
    assert trained(model) == {"layer4.1.conv1.weight", "layer4.1.conv2.weight"}


@pytest.mark.networks
def test_lora_trains_updates_of_attention_alone() -> None:
    model = transformer("blocks.2")
    before, images = model.eval()(photos())["H"], photos()
    LoRA(rank=3)(model)
    expected = {f"blocks.{i}.attn.qkv.lora_{part}.default.weight" for i in range(3) for part in "AB"}
    assert trained(model) == expected  # none in the blocks that no head uses
    assert torch.equal(model(images)["H"], before)  # the network begins as it was
    assert model.backbone.network.get_parameter("blocks.0.attn.qkv.lora_A.default.weight").shape == (3, 64)
    groups = optimizer_by_role(
        model.parameter_groups, optimizer=torch.optim.SGD, lr=1.0, heads_lr_multiplier=1.0, layer_decay=0.5
    ).param_groups
    assert [(group["name"], group["lr"], len(group["params"])) for group in groups] == [
        ("backbone.1", 0.25, 2),
        ("backbone.2", 0.5, 2),
        ("backbone.3", 1.0, 2),
        ("heads", 1.0, 1),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_efficientnet", ("conv", "conv_exp", "conv_expand", "conv_head", "conv_pw", "conv_pwl", "conv_reduce")),
        ("test_convnext", ("fc1", "fc2", "1")),
    ],
)
def test_lora_without_attention_updates_all_but_stem_and_groups(name: str, expected: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    backbone = timm_backbone(name)
    layers = {
        path: layer
        for path, layer in backbone.network.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and getattr(layer, "groups", 1) == 1
    }
    first = next(iter(layers))
    model = embed(backbone, backbone.stages[-1], 64)
    used = {path for path, layer in layers.items() if layer.weight.requires_grad}
    LoRA()(model)
    assert {path.partition(".lora_")[0] for path in trained(model)} == used - {first}
    assert {path.rpartition(".")[2] for path in used - {first}} <= set(expected)


def test_an_update_is_its_formula_and_merges() -> None:
    """Of a linear layer, and of a convolution with a stride and a border; alpha / rank = 2.5."""
    model = transformer()
    LoRA(rank=2, alpha=5.0)(model)
    learn(model).eval().double()
    layer: Any = model.backbone.network.get_submodule("blocks.1.attn.qkv")
    inputs = torch.randn(3, 5, 64, dtype=torch.float64)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    weight = layer.base_layer.weight + 2.5 * b @ a
    torch.testing.assert_close(layer(inputs), F.linear(inputs, weight, layer.base_layer.bias))
    merge_updates(model)
    torch.testing.assert_close(model.backbone.network.get_parameter("blocks.1.attn.qkv.weight").data, weight.data)

    model = cells()
    LoRA(rank=2, alpha=5.0, target_modules=["2"])(model)
    learn(model).eval().double()
    layer = model.backbone.network[2]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    weight = layer.base_layer.weight.clone()
    for out in range(6):
        for r in range(2):
            weight[out] += 2.5 * b[out, r, 0, 0] * a[r]
    maps = torch.randn(2, 4, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(layer(maps), F.conv2d(maps, weight, layer.base_layer.bias, stride=2, padding=1))
    merge_updates(model)
    torch.testing.assert_close(model.backbone.network.get_parameter("2.weight").data, weight.data)


@pytest.mark.parametrize("tap", ["2", "4"])
def test_a_merged_model_is_a_plain_one_that_embeds_the_same(tap: str) -> None:
    plain, model = cells(tap), cells(tap)
    LoRA(rank=2)(model)
    learn(model).eval()
    before = model(photos(12))["H"]
    assert not torch.allclose(before, plain.eval()(photos(12))["H"], atol=1e-2)
    merge_updates(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.backbone.layers == plain.backbone.layers
    torch.testing.assert_close(model(photos(12))["H"], before, rtol=0, atol=1e-6)  # the tap is of the merged layer
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(photos(12))["H"], model(photos(12))["H"])


@pytest.mark.parametrize(
    ("adapter", "settings", "moving"),
    [
        (LoRA(rank=2), {}, []),
        (BitFit(), {}, []),
        (LastBlocks(1), {}, []),
        (LastBlocks(2), {}, ["3"]),
        (NormOnly(), {}, ["1", "3"]),
        (NormOnly(), {"freeze_batchnorm": "statistics"}, []),
    ],
)
def test_frozen_batch_normalization_keeps_its_statistics(adapter: Any, settings: Any, moving: list[str]) -> None:
    model = cells(**settings)
    # batch normalization 1 is of layer 0, the stem, and 3 of layer 1; the convolution with groups is of layer 2
    adapter(model)
    model.eval().train()
    before = copy.deepcopy(model.backbone.network.state_dict())
    model(photos(12))
    after = model.backbone.network.state_dict()
    assert [
        name.split(".")[0] for name in after if "running_mean" in name and not torch.equal(after[name], before[name])
    ] == moving
    if not moving:
        check_chunk_size(model, 2)  # chunks give the embeddings of the batch


@pytest.mark.parametrize(
    ("make", "model", "line"),
    [
        (lambda: LoRA(rank=0), cells, r"adapter.rank=0: must be a whole number"),
        (lambda: LoRA(alpha=0.0), cells, r"adapter.alpha=0.0: must be a finite number above 0"),
        (lambda: LoRA(target_modules=["qvk"]), transformer, r"target_modules=\['qvk'\]: .* is named qvk; nearest: qkv"),
        (lambda: LoRA(target_modules=["4"]), cells, r"target_modules=\['4'\]: no linear layer .* one group .* named 4"),
        (lambda: LastBlocks(0), cells, r"adapter.blocks=0: must be a whole number"),
        (lambda: LastBlocks(7), transformer, r"adapter.blocks=7: the heads use 6 blocks of this network"),
        (lambda: LastBlocks(1), lambda: embed(small_cnn(), "pool2"), r"adapter.blocks=1: the blocks of Sequential are"),
        (
            NormOnly,
            lambda: cells(freeze_batchnorm="all"),
            r"no normalization layer .*Cells, may .*batchnorm=all freezes",
        ),
        (NormOnly, lambda: embed(small_cnn(), "pool2"), r"no normalization layer .* Sequential, may learn; choose"),
    ],
)
def test_what_cannot_be_is_told(make: Any, model: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()(model())


def test_a_layer_that_is_not_called_is_told() -> None:
    """timm's EVA passes the weights of qkv to a function of its own, with a bias that has no weight for the keys."""
    network = timm.models.eva.Eva(img_size=32, patch_size=16, embed_dim=16, depth=1, num_heads=2, num_classes=0)
    backbone = Backbone(network, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(InputError, match=r"takes the weights of blocks.0.attn.qkv without calling it.*such as"):
        LoRA()(embed(backbone, "patches"))


def gradients(rank: int, count: int) -> dict[str, Tensor]:
    """The gradients from six images, of which each of several processes has a share, in chunks of two."""
    model = transformer()
    LoRA(rank=2)(model)
    learn(model).train().double()
    share = photos(count=6).chunk(count)[rank]
    network = DistributedDataParallel(model) if count > 1 else model
    embeddings = embed_in_chunks(network, share, 2 if count > 1 else len(share))["H"]
    (embeddings**3).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def share_of_gradients() -> dict[str, Tensor]:
    return gradients(torch.distributed.get_rank(), 2)


@pytest.mark.distributed
def test_two_processes_and_chunks_give_the_gradients_of_one(tmp_path: Path) -> None:
    expected = gradients(0, 1)
    assert len(expected) == 12 + 1  # the updates, and the head
    for found in on_processes(2, tmp_path, share_of_gradients):
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
            assert gradient.abs().max() > 0
