"""A user's own folders of configurations and modules."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from dml.run.config_folders import format_value, search_path_overrides
from dml.run.stored import read_stored_run
from dml.run.sweeps import sweep_subfolder
from dml.runtime.run_folder import RunFolder


def test_a_search_path_is_kept_as_an_override_that_holds_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["my_conf", "file://a, b [1]", "file:///conf", "pkg://theirs.conf"]
    (override,) = search_path_overrides(OmegaConf.create({"searchpath": given}))
    parsed = OverridesParser.create().parse_override(override)
    assert parsed.get_key_element() == "hydra.searchpath"
    assert [str(folder) for folder in parsed.value()] == [
        f"file://{tmp_path}/my_conf",
        f"file://{tmp_path}/a, b [1]",
        "file:///conf",
        "pkg://theirs.conf",
    ]
    assert search_path_overrides(OmegaConf.create({"searchpath": []})) == []


def test_a_run_of_a_sweep_knows_its_search_path(tmp_path: Path) -> None:
    task = ["seed=1", "dataset.root=${oc.env:NOT_SET}", "dataset.name=${dataset.root}"]
    hydra = {"sweep": {"dir": str(tmp_path)}, "searchpath": ["file:///conf"], "overrides": {"task": task}}
    name = sweep_subfolder(0, _root_=OmegaConf.create({"seed": 1, "hydra": hydra}))
    assert read_stored_run(RunFolder(tmp_path / name)).overrides == [
        "hydra.searchpath=['file:///conf']",
        *task,
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), inner),
)


PARSER = OverridesParser.create()


@given(VALUES)
@examples(10)
def test_hydra_reads_a_formatted_value_back(value: Any) -> None:
    assert PARSER.parse_override(f"key={format_value(value)}").value() == value


@pytest.mark.parametrize(("options", "found"), [([], True), (["-P"], False)])
@pytest.mark.pipeline
def test_modules_in_the_working_folder_are_found_unless_python_is_told_otherwise(
    options: list[str], found: bool, tmp_path: Path
) -> None:
    (tmp_path / "own_module.py").touch()
    (tmp_path / "program.py").write_text(
        "from importlib.util import find_spec\n"
        "from dml.runtime.imports import import_from_working_folder\n"
        "import_from_working_folder()\n"
        "print(find_spec('own_module') is not None)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    script = (tmp_path / "program.py").rename(tmp_path / "elsewhere" / "program.py")
    done = subprocess.run(
        [sys.executable, *options, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(found)
