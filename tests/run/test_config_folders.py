"""A user's own folders of configurations and modules."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dml.ops.run_folder import RunFolder
from dml.run.config_folders import search_path_overrides
from dml.run.resolvers import sweep_subfolder
from dml.run.stored_configuration import read_stored_configuration


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
    hydra = {"sweep": {"dir": str(tmp_path)}, "searchpath": ["file:///conf"], "overrides": {"task": ["seed=1"]}}
    name = sweep_subfolder(0, _root_=OmegaConf.create({"seed": 1, "hydra": hydra}))
    assert read_stored_configuration(RunFolder(tmp_path / name)).overrides == [
        "hydra.searchpath=['file:///conf']",
        "seed=1",
    ]


@pytest.mark.parametrize(("options", "found"), [([], True), (["-P"], False)])
def test_modules_in_the_working_folder_are_found_unless_python_is_told_otherwise(
    options: list[str], found: bool, tmp_path: Path
) -> None:
    (tmp_path / "own_module.py").touch()
    (tmp_path / "program.py").write_text(
        "from importlib.util import find_spec\n"
        "from dml.commands.working_folder import import_from_working_folder\n"
        "import_from_working_folder()\n"
        "print(find_spec('own_module') is not None)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    script = (tmp_path / "program.py").rename(tmp_path / "elsewhere" / "program.py")
    done = subprocess.run(
        [sys.executable, *options, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(found)
