import pytest
import torch
from configurations import CONF, compose
from hydra.utils import instantiate
from omegaconf import DictConfig

from dml.models.embedding import EmbeddingModel
from dml.models.heads import AuxiliaryHead, PoolHead

pytestmark = pytest.mark.networks

CONFIGS = sorted(
    path.stem
    for path in (CONF / "model").glob("*.yaml")
    if "pretraining:" not in path.read_text()  # see test_pretrained_configs.py
)
SIZES = {"bn_inception": 144, "googlenet": 144}
"""The smallest images that leave 5 x 5 cells for the pool of RLL's heads."""
NAMES = {"timm": "convnext_atto"}


META = torch.device("meta")
"""Networks without values take no time to draw: it shows shapes and dtypes alone."""


def composed(name: str, *overrides: str) -> DictConfig:
    own = [f"model.backbone.name={NAMES[name]}"] if name in NAMES else []
    size = f"transform.size={SIZES.get(name, 32)}"
    return compose(f"model={name}", "model.embed_dim=8", size, *own, *overrides)


@pytest.mark.parametrize("name", CONFIGS)
def test_builds_and_embeds(name: str) -> None:
    config = composed(name, "model.backbone.weights=null", "model.heads=[L,M,H]")
    with META:
        model = instantiate(config.model)
        assert isinstance(model, EmbeddingModel)
        embeddings = model(torch.zeros(2, 3, config.transform.size, config.transform.size))
    assert {head: tuple(rows.shape) for head, rows in embeddings.items()} == dict.fromkeys("LMH", (2, 8))
    assert {*compose(f"model={name}").model.heads} <= {*embeddings}


@pytest.mark.parametrize("name", SIZES)
def test_rlls_heads_pool_as_the_authors_do(name: str) -> None:
    with META:
        model = instantiate(composed(name, "model.backbone.weights=null").model)
    assert {head: type(module) is AuxiliaryHead for head, module in model.heads.items()} == {
        "L": True,
        "M": True,
        "H": False,
    }
    assert model.heads["L"].grid is model.heads["M"].grid is None


def test_only_the_last_layers_of_googlenets_branches_are_new() -> None:
    with META:
        model = instantiate(composed("googlenet_branches", "model.backbone.weights=null").model)
    assert {type(head) for head in model.heads.values()} == {PoolHead}
    assert [(name, p.shape) for name, p in model.heads.named_parameters()] == [
        (f"{head}.embedding.weight", (8, 1024)) for head in "LMH"
    ]
    trained = {name for name, p in model.backbone.named_parameters() if p.requires_grad}
    assert {f"network.{branch}.fc1.weight" for branch in ("aux1", "aux2")} <= trained


def test_the_default_model_has_packaged_weights() -> None:
    config = compose()
    assert config.model.backbone.weights == "packaged"
    one, other = instantiate(config.model), instantiate(config.model)
    torch.testing.assert_close(one.backbone.state_dict(), other.backbone.state_dict(), rtol=0, atol=0)
