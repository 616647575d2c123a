"""What a checkpoint leaves out, and what it gets back when it is read."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from dml.models.adapters import LastBlocks
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.models.networks import number_layers
from dml.runtime.errors import InputError
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.checkpoints import FrozenWeights, fill_in, load_model, read_checkpoint


class Network(nn.Sequential):
    """A frozen layer of known and one of random weights, two norms, and a layer that learns."""

    def __init__(self, value: float = 3.0) -> None:
        super().__init__(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4))
        self.append(nn.Conv2d(4, 4, 1))
        nn.init.constant_(self[0].weight, value)


def build(seed: int = 0, value: float = 3.0) -> EmbeddingModel:
    torch.manual_seed(seed)
    layers = {"0": 0, "1": 1, "2": 1, "3": 2, "4": 2}
    backbone = Backbone(Network(value), mean=(0.5,) * 3, std=(0.5,) * 3)
    backbone.layers = {name: layers[name[0]] for name, _ in backbone.network.named_parameters()}
    model = EmbeddingModel(backbone, taps={"H": "4"}, head={"H": PoolHead}, heads=["H"], embed_dim=2, image_size=4)
    LastBlocks(1)(model)
    return model


def checkpoint_of(model: nn.Module, **more: Any) -> dict[str, Any]:
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    return {"state_dict": state, "global_step": 3, "run": {}, **more}


KNOWN = {"0.weight", "2.weight", "2.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked"}
"""Frozen, and the same whenever the model is built; random biases and weights are not."""


def test_a_checkpoint_leaves_out_what_building_gives_again(tmp_path: Path) -> None:
    model = build()
    plain = checkpoint_of(model)
    average = {name: value.clone() for name, value in plain["state_dict"].items()}
    path = tmp_path / "last.ckpt"
    writer = AtomicCheckpointIO(model, FrozenWeights(model, build(seed=1)))
    writer.save_checkpoint(plain | {"current_model_state": average}, path)
    written = read_checkpoint(path)
    for entry in ("state_dict", "current_model_state"):
        left_out = {
            name.removeprefix("model.backbone.network.") for name in plain["state_dict"] if name not in written[entry]
        }
        assert left_out == KNOWN
    read = writer.load_checkpoint(path)
    for entry in ("state_dict", "current_model_state"):
        assert read[entry].keys() == plain["state_dict"].keys()
        assert all(torch.equal(value, plain["state_dict"][name]) for name, value in read[entry].items())
    other = build(seed=2)
    load_model(other, path)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())


def test_a_frozen_weight_of_another_value_is_kept() -> None:
    """As in a run that begins with the weights of another one."""
    model = build()
    frozen = FrozenWeights(model, build(seed=1))
    with torch.no_grad():
        model.backbone.network[0].weight.fill_(4.0)
        model.backbone.network[2].running_mean += 1.0
    names = frozen.leave_out(checkpoint_of(model))["frozen"]["names"]
    assert {name.removeprefix("model.backbone.network.") for name in names} == KNOWN - {"0.weight", "2.running_mean"}


def test_other_frozen_weights_are_told() -> None:
    model = build()
    slim = FrozenWeights(model, build(seed=1)).leave_out(checkpoint_of(model))
    with pytest.raises(InputError, match=r"checkpoint=best.ckpt: trained with frozen weights of fingerprint \w{16},"):
        fill_in(slim, build(value=3.5), "best.ckpt")
    with pytest.raises(InputError, match=r"the model gives none, as it is another one"):
        fill_in(slim, nn.Linear(1, 1), "best.ckpt")


def test_what_was_fitted_to_the_image_size_is_kept() -> None:
    """Position embeddings are resampled, and another machine may round them otherwise."""

    def fitted(seed: int) -> EmbeddingModel:
        torch.manual_seed(seed)
        network = timm.create_model("test_vit", num_classes=0, dynamic_img_size=False)
        nn.init.constant_(network.pos_embed, 0.5)
        nn.init.constant_(network.cls_token, 0.5)
        layers = number_layers(network, [f"blocks.{i}" for i in range(6)])
        backbone = Backbone(network, mean=(0.5,) * 3, std=(0.5,) * 3, layers=layers)
        model = EmbeddingModel(
            backbone, taps={"H": "blocks.1"}, head={"H": PoolHead}, heads=["H"], embed_dim=2, image_size=32
        )
        LastBlocks(1)(model)
        return model

    model = fitted(0)
    names = FrozenWeights(model, fitted(1)).leave_out(checkpoint_of(model))["frozen"]["names"]
    assert "model.backbone.network.cls_token" in names
    assert "model.backbone.network.pos_embed" not in names
