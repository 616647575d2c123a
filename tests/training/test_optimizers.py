from typing import Any

import pytest
import torch
from torch import nn

from dml.models.backbone import ParameterList
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.models.networks import timm_backbone
from dml.models.small_cnn import small_cnn
from dml.runtime.errors import InputError
from dml.training.optimizers import change_settings, list_settings, optimizer_by_role


def roles() -> dict[str, list[nn.Parameter]]:
    return {name: [nn.Parameter(torch.ones(2))] for name in ("backbone", "heads", "loss")}


def groups(**settings: object) -> dict[str, dict[str, object]]:
    optimizer = optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, **settings)
    return {group["name"]: group for group in optimizer.param_groups}


def test_heads_learn_faster() -> None:
    found = groups(heads_lr_multiplier=10.0, momentum=0.9, weight_decay=2e-5)
    assert [found[name]["lr"] for name in ("backbone", "heads", "loss")] == pytest.approx([0.01, 0.1, 0.01])
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 2e-5 for group in found.values())


def test_a_loss_has_its_own_settings() -> None:
    found = groups(loss={"lr": 5.0, "weight_decay": 0.0}, weight_decay=0.1)
    assert (found["loss"]["lr"], found["loss"]["weight_decay"]) == (5.0, 0.0)
    assert found["backbone"]["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": -1.0}, r"^optimizer\.lr=-1\.0: must be a finite number, 0 or more$"),
        ({"lr": float("inf")}, r"^optimizer\.lr=inf: must be"),
        ({"momentum": True}, r"^optimizer\.momentum=True: must be"),
        ({"loss": {"lr": -1.0}}, r"^optimizer\.loss\.lr=-1\.0: must be"),
        ({"loss": {"weight_decy": 0.1}}, r"^optimizer\.loss\.weight_decy: no setting of SGD; nearest: weight_decay$"),
        *(({"layer_decay": decay}, f"layer_decay={decay}: must be above 0") for decay in (0, -0.5, 1.5, float("nan"))),
    ],
)
def test_a_setting_that_is_none_is_refused(settings: dict[str, Any], line: str) -> None:
    for parameters in (roles(), roles() | {"loss": []}):
        with pytest.raises(InputError, match=line):
            optimizer_by_role(parameters, optimizer=torch.optim.SGD, **{"lr": 0.1} | settings)


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
@pytest.mark.parametrize("no_decay", [["norm"], ["bias"], ["norm", "bias"]])
def test_kinds_of_parameters_go_without_weight_decay(no_decay: list[str], layer_decay: float) -> None:
    head = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    names = {parameter: name for name, parameter in head.named_parameters()}
    parameters = {"backbone": ParameterList(head, [0, 0, 1, 1]), "heads": [], "loss": [nn.Parameter(torch.ones(3))]}
    made = optimizer_by_role(
        parameters, optimizer=torch.optim.SGD, lr=1.0, layer_decay=layer_decay, no_decay=no_decay, weight_decay=0.1
    )
    kinds = {"norm": {"1.weight", "1.bias"}, "bias": {"0.bias"}}
    exempt = {names[p] for group in made.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    assert exempt == set().union(*(kinds[kind] for kind in no_decay))
    assert sum(len(group["params"]) for group in made.param_groups) == 5
    rates = {names[p]: group["lr"] for group in made.param_groups for p in group["params"] if p in names}
    assert rates == {name: 1.0 if name.startswith("1") else layer_decay for name in names.values()}


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"^optimizer\.no_decay: norms; "):
        optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.1, no_decay=["norms"])


def test_what_asks_for_no_gradient_is_left_out() -> None:
    parameters = roles()
    parameters["backbone"][0].requires_grad_(False)
    parameters["loss"] = []
    optimizer = optimizer_by_role(parameters, optimizer=torch.optim.AdamW, lr=0.1)
    assert [group["name"] for group in optimizer.param_groups] == ["heads"]
    with pytest.raises(InputError, match=r"^optimizer: .*empty"):
        optimizer_by_role({"backbone": []}, optimizer=torch.optim.SGD, lr=0.1)


def test_a_setting_that_a_callback_has_moved_stays_as_it_is_stored() -> None:
    optimizer = optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, momentum=0.5)
    begun_with = list_settings(optimizer)
    for group in optimizer.param_groups:
        group["lr"] /= 2
    checkpoint = {"optimizer_settings": begun_with, "optimizer_states": [optimizer.state_dict()]}
    resumed = optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, momentum=0.9)
    change_settings(checkpoint, resumed)
    stored = checkpoint["optimizer_states"][0]["param_groups"]
    assert [group["lr"] for group in stored] == [0.005, 0.05, 0.005]
    assert [group["momentum"] for group in stored] == [0.9] * 3


# layer-wise decay

RATES = {  # a table by hand: halved from layer to layer of a transformer of six blocks
    "patch_embed.proj.weight": 0.00015625,
    "cls_token": 0.00015625,
    "pos_embed": 0.00015625,
    "blocks.0.attn.qkv.weight": 0.0003125,
    "blocks.1.mlp.fc2.bias": 0.000625,
    "blocks.2.norm1.weight": 0.00125,
    "blocks.3.mlp.fc1.weight": 0.0025,
    "blocks.4.attn.proj.bias": 0.005,
    "blocks.5.norm2.weight": 0.01,
    "norm.weight": 0.01,
}


def transformer(tap: str = "patches", **settings: Any) -> EmbeddingModel:
    backbone = timm_backbone("test_vit", any_size=True, **settings)
    return EmbeddingModel(backbone, taps={"H": tap}, head={"H": PoolHead}, heads=["H"], embed_dim=4, image_size=32)


def rates(model: EmbeddingModel, **settings: float) -> dict[str, float]:
    """The rate of each trained parameter by name, each of which is in one group."""
    optimizer = optimizer_by_role(model.parameter_groups, optimizer=torch.optim.SGD, lr=0.01, **settings)
    pairs = [(parameter, group["lr"]) for group in optimizer.param_groups for parameter in group["params"]]
    by_parameter = dict(pairs)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(pairs) == len(trained)
    return {name.removeprefix("backbone.network."): by_parameter[p] for name, p in trained.items()}


def test_layer_decay_gives_the_rates_of_the_table() -> None:
    found = rates(transformer(), layer_decay=0.5, heads_lr_multiplier=3.0)
    assert {name: found[name] for name in RATES} == pytest.approx(RATES)
    assert found["heads.H.embedding.weight"] == pytest.approx(0.03)


def test_the_last_layer_that_is_trained_has_the_rate() -> None:
    found = rates(transformer("blocks.2", freeze_patch_embedding=True), layer_decay=0.5, heads_lr_multiplier=1.0)
    assert "norm.weight" not in found
    assert "patch_embed.proj.weight" not in found
    expected = {"blocks.2.norm1.weight": 0.01, "blocks.1.norm1.weight": 0.005, "blocks.0.norm1.weight": 0.0025}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["cls_token"] == pytest.approx(0.00125)


def test_layer_decay_needs_the_order_of_the_layers() -> None:
    model = EmbeddingModel(small_cnn(), taps={"H": "pool2"}, head={"H": PoolHead}, heads=["H"], image_size=32)
    with pytest.raises(InputError, match=r"optimizer.layer_decay=0\.5: the order of this network's layers is unknown"):
        rates(model, layer_decay=0.5)
