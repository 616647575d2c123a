from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from dml.run.config_folders import CONF


@pytest.mark.parametrize("command", ["evaluate", "prepare", "inspect", "audit", "shift"])
def test_no_folder_is_made_while_a_job_composes_a_configuration(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        job = compose("train", return_hydra_config=True)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", job)
        compose(command)
    assert list(tmp_path.iterdir()) == []
