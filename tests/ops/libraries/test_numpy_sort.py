import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from dml.ops.libraries import numpy_sort
from dml.ops.libraries.numpy_sort import AVX512, VARIABLE, choose_sort

ZEN_4 = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 avx512f avx512dq\n\n"
ZEN_3 = ZEN_4.replace(" avx512f avx512dq", "")
ZEN_5 = ZEN_4.replace("25", "26")


@pytest.fixture(autouse=True)
def as_before_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is as before after the test
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delitem(sys.modules, "numpy")


@pytest.mark.parametrize(
    ("processors", "chosen"), [(ZEN_4, AVX512), (ZEN_4 * 2, AVX512), (ZEN_3 + ZEN_4, None), (ZEN_5, None), ("", None)]
)
def test_only_zen_4_sorts_without_avx512(processors: str, chosen: str | None, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(processors)
    choose_sort(tmp_path / "cpuinfo")
    assert os.environ.get(VARIABLE) == chosen


def test_what_the_user_sets_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(ZEN_4)
    monkeypatch.setenv(VARIABLE, "")
    choose_sort(tmp_path / "cpuinfo")
    assert os.environ[VARIABLE] == ""


def test_it_is_left_alone_where_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_sort(tmp_path / "no Linux")
    (tmp_path / "cpuinfo").write_text(ZEN_4)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "numpy", numpy_sort)  # imported already
        choose_sort(tmp_path / "cpuinfo")
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"numpy": "2.3.5"}[name])
    choose_sort(tmp_path / "cpuinfo")
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(
    "start",
    [
        "program.dispatch = report; program.run_command()",
        "hydra_command.quiet = report; runpy.run_path('train.py', run_name='__main__')",
    ],
)
def test_programs_choose_before_numpy_is_imported(start: str) -> None:
    code = f"""
import os, runpy, sys
from dml import __main__ as program
from dml.commands import hydra_command
from dml.ops.libraries import numpy_sort

def report(*arguments):
    print("numpy" in sys.modules, os.environ[{VARIABLE!r}])
    sys.exit()

numpy_sort._is_zen_4 = lambda processors: True
{start}
"""
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["False", AVX512]
