"""Models on the Hugging Face hub, whose library is replaced by folders of this machine."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from manifests import seal
from small_embedders import make_model

import dml
from dml.runtime.errors import InputError


class RevisionError(OSError):
    """Stands for the errors of requests of huggingface_hub, which are errors of the system."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the repositories, OWNER/NAME, each with one revision, main."""
    folder, is_offline = tmp_path / "hub", tmp_path / "offline"

    class Hub:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            assert private
            assert exist_ok
            (folder / name).mkdir(parents=True)
            return f"https://hub/{name}"

        def upload_folder(self, *, repo_id: str, folder_path: Path) -> None:
            shutil.copytree(folder_path, folder / repo_id, dirs_exist_ok=True)

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        if is_offline.exists():
            raise FileNotFoundError("no copy in the cache") from ConnectionError()
        if revision != "main" or not (folder / name).is_dir():
            raise RevisionError
        copied = tmp_path / "cache" / name
        copied.mkdir(parents=True, exist_ok=True)
        for file in (folder / name).iterdir():
            if file.name in allow_patterns:
                shutil.copy(file, copied)
        return str(copied)

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_model_is_uploaded_and_opened(hub: Path, tmp_path: Path) -> None:
    model = make_model()
    assert model.push_to_hub("ann/birds") == "https://hub/ann/birds"
    names = {file.name for file in (hub / "ann" / "birds").iterdir()}
    assert names == {"README.md", "config.yaml", "model.json", "model.safetensors"}
    assert dml.load("ann/birds", device="cpu").fingerprint == model.fingerprint

    attack = shutil.copytree(hub / "ann" / "birds", hub / "eve" / "birds")
    config = (attack / "config.yaml").read_text()
    (attack / "config.yaml").write_text(config.replace("dml.models.small_cnn.small_cnn", "os.getcwd"))
    seal(attack / "model.json")
    (hub / "eve" / "pickle").mkdir()
    (hub / "eve" / "pickle" / "model.pkl").write_bytes(b"cos\nsystem\n")
    (tmp_path / "outputs").mkdir()
    refused: dict[str, dict[str, Any]] = {
        r"ann/birds: nothing is there, .* no revision v2 of it \(RevisionError\)": {"revision": "v2"},
        r"ann/no: nothing is there": {"place": "ann/no"},
        r"eve/birds: model.backbone._target_=os.getcwd could run any code": {"place": "eve/birds"},
        r"holds nothing that push_to_hub uploaded": {"place": "eve/pickle"},
        r"outputs/no: nothing is there; give": {"place": "outputs/no"},
    }
    for line, arguments in refused.items():
        with pytest.raises(InputError, match=line):
            dml.load(**{"place": "ann/birds", **arguments})
    (tmp_path / "offline").touch()
    with pytest.raises(InputError, match=r"\(ConnectionError\)"):
        dml.load("ann/birds")
