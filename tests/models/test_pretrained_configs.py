"""The configurations of pretrained transformers: what they state of the weights, their keys, and a training's steps."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from configurations import CONF, compose
from hydra.utils import instantiate
from omegaconf import DictConfig

from dml.models.embedding import EmbeddingModel

pytestmark = pytest.mark.pipeline

WIDTHS = {
    "dinov2_small": 384,
    "dinov2_base": 768,
    "dinov2_reg_small": 384,
    "dinov2_reg_base": 768,
    "dinov3_small": 384,
    "dinov3_base": 768,
    "dinov3_convnext_tiny": 768,
    "siglip2_base": 768,
    "clip_base": 768,
    "pe_core_small": 384,
    "pe_core_base": 768,
    "dino_small": 384,
    "vit_small_in21k": 384,
    "vit_base_in21k": 768,
    "eva02_base": 768,
}
RATES = {"dino_small": 1e-5, "vit_small_in21k": 3e-5}
CONFIGS = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if "pretraining:" in path.read_text())
SIZE = 64
"""Side of the images, no multiple of 14: the patches of DINOv2 and EVA-02 cover a border that is added."""
WHOLE = ("dino_small", "dinov3_small")
"""The configurations whose networks are trained whole; those of the others lose blocks, to save time."""


@cache
def composed(name: str) -> DictConfig:
    return compose(f"model={name}", "model.backbone.weights=null", f"transform.size={SIZE}")


@pytest.fixture
def short_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timm build networks of two blocks, or of a block in each stage."""
    whole = timm.create_model

    def create_short(name: str, **options: Any) -> Any:
        short = {"depths": (1, 1, 1, 1)} if name.startswith("convnext") else {"depth": 2}
        network = whole(name, **options, **short)
        assert len(network.feature_info) == (4 if name.startswith("convnext") else 2)
        return network

    monkeypatch.setattr("timm.create_model", create_short)


def test_all_configurations_of_pretrained_weights_are_tested() -> None:
    assert sorted(WIDTHS) == CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_file_states_is_what_timm_states(name: str) -> None:
    config = composed(name)
    backbone, pretraining = config.model.backbone, config.model.pretraining
    stated = timm.get_pretrained_cfg(backbone.name)
    assert stated.tag == backbone.name.partition(".")[2] != ""
    assert tuple(backbone.mean) == stated.mean
    assert tuple(backbone.std) == stated.std
    assert (3, pretraining.input_size, pretraining.input_size) == stated.input_size
    assert pretraining.license == stated.license
    assert pretraining.interpolation == stated.interpolation == "bicubic"
    assert set(pretraining) == {"input_size", "interpolation", "license", "data", "lr", "gradient_clip_val"}
    assert len(pretraining.data) > 20


@pytest.mark.parametrize("name", CONFIGS)
def test_the_optimizer_takes_the_rate_of_the_weights(name: str) -> None:
    config = composed(name)
    assert config.optimizer.lr == RATES.get(name, 1e-6 if name.startswith("dinov") else 1e-5)
    is_hyp_vit = name in ("dino_small", "vit_small_in21k")
    assert config.trainer.gradient_clip_val == (3.0 if is_hyp_vit else None)
    assert config.model.backbone.freeze_patch_embedding is is_hyp_vit


def test_a_rate_of_the_user_comes_first() -> None:
    own = compose("model=dino_small", "optimizer.lr=1e-3", "trainer.gradient_clip_val=1")
    assert (own.optimizer.lr, own.trainer.gradient_clip_val) == (1e-3, 1)
    assert compose("model=dino_small", "trainer.gradient_clip_val=null").trainer.gradient_clip_val is None


def test_other_models_have_the_default_rate() -> None:
    for config in (compose(), compose("model=resnet50")):
        assert config.optimizer.lr == 3e-4
        assert config.trainer.gradient_clip_val is None


@pytest.mark.parametrize("name", CONFIGS)
def test_the_keys_are_those_of_timms_weights(name: str) -> None:
    """Beside the classifier of timm's configuration; the tapped submodules exist as well."""
    config = composed(name)
    with torch.device("meta"):
        source = timm.create_model(config.model.backbone.name)
        backbone = instantiate(config.model.backbone)
    backbone.tap(config.model.taps)
    classifier = source.pretrained_cfg["classifier"]
    expected = {key: v.shape for key, v in source.state_dict().items() if key.rpartition(".")[0] != classifier}
    assert {key: value.shape for key, value in backbone.network.state_dict().items()} == expected
    assert source.num_classes == timm.get_pretrained_cfg(config.model.backbone.name).num_classes


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in WHOLE])
@pytest.mark.usefixtures("short_networks")
def test_a_short_network_loads_strictly_and_trains(tmp_path: Path, name: str) -> None:
    check_training(composed(name).copy(), WIDTHS[name], tmp_path / "file.pth")


@pytest.mark.thorough  # networks of two blocks show the same in less time
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_network_loads_strictly_and_trains(tmp_path: Path, name: str) -> None:
    check_training(composed(name).copy(), WIDTHS[name], tmp_path / "file.pth")


def check_training(config: DictConfig, width: int, path: Path) -> None:
    """Two steps from timm's weights change exactly the parameters that are trained."""
    torch.manual_seed(0)
    source = timm.create_model(config.model.backbone.name)
    torch.save(source.state_dict(), path)
    config.model.backbone.weights = str(path)
    model = instantiate(config.model)
    assert isinstance(model, EmbeddingModel)
    assert model.embed_dims == {"H": width} == {"H": model.heads["H"].embedding.in_features}
    given = source.state_dict()
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert all(torch.equal(value, given[key]) for key, value in model.backbone.network.state_dict().items())
    optimizer = instantiate(config.optimizer)(model.parameter_groups)
    rates = {group["lr"] / config.model.pretraining.lr for group in optimizer.param_groups}
    assert sorted(rates) == pytest.approx([1.0, config.optimizer.heads_lr_multiplier])
    batch = torch.randint(0, 256, (2, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0)).float()
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.normalize(model(batch)["H"], dim=1)[:, :8].sum()
        loss.backward()
        assert loss.isfinite()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) is parameter.requires_grad, name
        if parameter.grad is None:
            assert torch.equal(parameter, before[name]), name
        elif parameter.grad.abs().max() > 1e-5:
            assert not torch.equal(parameter, before[name]), name
    frozen = {name.split(".")[2] for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == ({"patch_embed"} if config.model.backbone.freeze_patch_embedding else set())


def test_the_lower_heads_embed_blocks() -> None:
    config = compose("model=dino_small", "model.backbone.weights=null", "transform.size=64", "model.heads=[L,M,H]")
    embeddings = instantiate(config.model)(torch.zeros(2, 3, 64, 64))
    assert {name: tuple(rows.shape) for name, rows in embeddings.items()} == dict.fromkeys("LMH", (2, 384))
