"""Models, checkpoints and indexes of a stranger run no code, and read and write nothing but themselves."""

import copy
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from manifests import seal
from small_embedders import make_model

import dml
from dml.runtime.errors import InputError
from dml.training.checkpoints import FORMAT

pytestmark = pytest.mark.pipeline


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model().save_pretrained(tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture
def attacks(tmp_path: Path) -> list[dict[str, Any]]:
    """Nodes of a configuration, each of which would make the folder "ran" if it were built."""
    ran = str(tmp_path / "ran")
    pickled, array = tmp_path / "evil.pickle", tmp_path / "evil.npy"
    pickled.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    np.save(array, np.array([Evil(tmp_path / "ran")]), allow_pickle=True)
    partial = {"_target_": "functools.partial", "_args_": [{"_target_": "os.mkdir", "_partial_": True, "path": ran}]}
    return [
        {"_target_": "os.mkdir", "path": ran},
        {"_target_": "torch.load", "f": str(pickled), "weights_only": False},
        {"_target_": "numpy.load", "file": str(array), "allow_pickle": True},
        partial,
        {"_target_": "dml.models.heads.PoolHead", "_partial_": True, "x": [{"_target_": "os.mkdir", "path": ran}]},
    ]


def list_places(content: Any, *keys: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the keys of every value in nested lists and mappings, those of lists and mappings themselves too."""
    if keys:
        yield keys
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield from list_places(value, *keys, key)


def replace_value(content: Any, keys: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(content)
    node = changed
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    return changed


def load_quietly(folder: Path) -> str:
    """Load a model -> the line of the error that it ends with; "" if it can be loaded."""
    try:
        dml.load(folder)
    except InputError as error:
        return str(error)
    return ""


def test_no_place_of_a_saved_model_runs_code(saved: Path, tmp_path: Path, attacks: list[dict[str, Any]]) -> None:
    config = yaml.safe_load((saved / "config.yaml").read_text())
    folder = shutil.copytree(saved, tmp_path / "saved")
    places = [*list_places(config)]
    assert len(places) > 20
    refused = 0
    for keys in places:
        for attack in attacks:
            changed = replace_value(config, keys, attack)
            (folder / "config.yaml").write_text(yaml.safe_dump(changed))
            seal(folder / "model.json")
            refused += bool(load_quietly(folder))
            assert not (tmp_path / "ran").exists(), (keys, attack)
    assert refused > len(places)


@pytest.mark.parametrize(
    ("key", "reference"),
    [
        ("transform", "${other}"),
        ("transform.test", "${transform.other}"),
        *((f"model.{key}", "${transform.other}") for key in ("pretraining", "head", "heads", "taps")),
    ],
)
def test_nothing_runs_behind_an_interpolation(
    saved: Path, tmp_path: Path, attacks: list[dict[str, Any]], key: str, reference: str
) -> None:
    config = yaml.safe_load((saved / "config.yaml").read_text())
    folder = shutil.copytree(saved, tmp_path / "saved")
    for attack in attacks:
        changed = replace_value(config, tuple(key.split(".")), reference)
        changed["other"] = attack
        if isinstance(changed["transform"], dict):
            changed["transform"]["other"] = attack
        (folder / "config.yaml").write_text(yaml.safe_dump(changed))
        seal(folder / "model.json")
        assert load_quietly(folder)
        assert not (tmp_path / "ran").exists()


def test_the_environment_is_not_read(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DML_TEST_SECRET", "hunter2")
    folder = shutil.copytree(saved, tmp_path / "saved")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for place in ("model.backbone.name", "dataset.root", "model.image_size"):
        changed = replace_value(config, tuple(place.split(".")), "${oc.env:DML_TEST_SECRET}")
        (folder / "config.yaml").write_text(yaml.safe_dump(changed))
        seal(folder / "model.json")
        line = load_quietly(folder)
        assert "interpolation" in line
        assert "hunter2" not in line


LAUGHS = "a0: &a0 [1, 1]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}, *a{n}]\n" for n in range(30))
"""A kilobyte that stands for 10**14 numbers."""


def test_texts_without_bounds_are_refused_within_a_second(saved: Path, tmp_path: Path) -> None:
    texts = {
        "config.yaml": [
            "&a [*a]",
            "{model: &a {b: *a}, transform: *a, data: *a}",
            "[" * 200_000,
            LAUGHS,
            "{model: 3, transform: [], data: x}",
        ],
        "model.json": ["[" * 200_000, '{"a":' * 200_000, "[]", "1" * 10_000],
    }
    for file, text in ((name, text) for name in texts for text in texts[name]):
        folder = shutil.copytree(saved, tmp_path / "saved", dirs_exist_ok=True)
        (folder / file).write_text(text)
        if file == "config.yaml":
            seal(folder / "model.json")
        start = time.monotonic()
        assert "not as save_pretrained wrote it" in load_quietly(folder)
        assert time.monotonic() - start < 1


def test_settings_that_no_model_has_are_one_line(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "saved")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    resize = {"_target_": "dml.data.transforms.Resize", "size": 8, "mode": "warp"}
    cases: list[tuple[str, Any, str]] = [
        ("model.embed_dim", "many", "can't be used"),
        ("model.taps", {"H": "nowhere"}, "nowhere"),
        ("model.heads", [3], "model.heads"),
        ("model.heads", {"H": 1}, "model.heads"),
        ("transform.test", resize, "mode"),
    ]
    for key, value, named in cases:
        (folder / "config.yaml").write_text(yaml.safe_dump(replace_value(config, tuple(key.split(".")), value)))
        seal(folder / "model.json")
        assert named in load_quietly(folder)


def test_a_checkpoint_of_a_stranger_is_held_to_the_same(tmp_path: Path) -> None:
    config: Any = {"model": {}}
    config["model"]["heads"] = config
    run = {"config": config, "overrides": []}
    torch.save({"format": FORMAT, "state_dict": {}, "global_step": 1, "run": run}, tmp_path / "a.ckpt")
    assert "not a checkpoint of a dml run" in load_quietly(tmp_path / "a.ckpt")
    for run in (None, [], {"config": 3, "overrides": []}, {"config": {}, "overrides": [3]}, {"config": {"model": 1}}):
        torch.save({"format": FORMAT, "state_dict": {}, "global_step": 1, "run": run}, tmp_path / "b.ckpt")
        assert "not a checkpoint of a dml run" in load_quietly(tmp_path / "b.ckpt")
