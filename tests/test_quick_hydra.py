"""The test session's Hydra, which remembers, composes what a user's does."""

import copy
from pathlib import Path

import configurations
import pytest
from configurations import CONF
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from quick_hydra import forgetting

from dml.run.stored import StoredRun, offer

pytestmark = pytest.mark.pipeline

CASES = {
    "values": ["loss=rll", "loss.alpha=3", "+data.own={a:1}", "~scheduler", "hydra.run.dir='a b'"],
    "an experiment": ["experiment=lns/emoji/rnn", "loss=margin"],
    "an unknown choice": ["loss=nothing"],
    "an unknown key": ["loss=rll", "loss.unknown=1"],
    "a key twice": ["loss=rll", "loss=margin"],
}


def composed(overrides: list[str], name: str = "train") -> str:
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose(name, overrides=overrides, return_hydra_config=True)
    except HydraException as error:
        return repr(error)
    return OmegaConf.to_yaml(config)


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_a_composition_is_the_same(overrides: list[str]) -> None:
    with forgetting():
        expected = composed(overrides)
    assert [composed(overrides) for _ in range(2)] == [expected] * 2


def test_files_of_ones_own_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    for margin in (1, 2):
        (tmp_path / "loss" / "mine.yaml").write_text(f"margin: {margin}\n")
        found = composed(["loss=mine", f"hydra.searchpath=['file://{tmp_path}']"])
        assert OmegaConf.create(found).loss.margin == margin


def test_the_values_of_a_run_are_not_remembered() -> None:
    for margin in (1, 2):
        stored = OmegaConf.to_container(configurations.compose(f"loss.margin={margin}"), resolve=False)
        name = offer("train", StoredRun([], stored), [])  # type: ignore[arg-type]
        with forgetting():
            expected = composed(["optimizer=sgd"], name)
        assert composed(["optimizer=sgd"], name) == expected
        assert OmegaConf.create(expected).loss.margin == margin


def test_configurations_of_ones_own_are_not_remembered() -> None:
    store = ConfigStore.instance()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "repo", copy.deepcopy(store.repo))
        store.store("registered", {"margin": 1}, group="loss")
        assert OmegaConf.create(composed(["loss=registered"])).loss.margin == 1
    assert "Could not find 'loss/registered'" in composed(["loss=registered"])
