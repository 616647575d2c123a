from pathlib import Path

import pytest
from configurations import compose as compose_job
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from dml.run.config_folders import CONF


@pytest.mark.parametrize("command", ["evaluate", "prepare", "inspect"])
def test_no_folder_is_made_while_a_job_composes_a_configuration(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        job = compose("train", return_hydra_config=True)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", job)
        compose(command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "lr"),
    [
        ([], 3e-4),
        (["model=dinov2_small"], 1e-6),
        (
            ["model=dinov2_small", "training.frozen=true"],
            3e-4,
        ),  # heads alone would hardly learn at the rate of the network
        (["model=dinov2_small", "training.frozen=true", "optimizer.lr=1e-3"], 1e-3),
    ],
)
def test_the_rate_is_the_networks_unless_the_heads_alone_learn(overrides: list[str], lr: float) -> None:
    assert compose_job(*overrides).optimizer.lr == lr
