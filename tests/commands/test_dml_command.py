"""The command ``dml``: its list of commands, their help, and what is wrong with a command line in one line."""

import os
import signal
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from dml import __version__
from dml.__main__ import COMMANDS, dispatch, format_help

ROOT = Path(__file__).parents[2]
HYDRA = {"train", "evaluate", "prepare", "inspect"}
"""The commands whose help is Hydra's."""


def test_the_list_has_a_line_for_each_command_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        dispatch(arguments)
        assert capsys.readouterr().out == format_help()
    lines = format_help().splitlines()
    assert max(map(len, lines)) < 80
    for name, command in COMMANDS.items():
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.endswith(command.summary)


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--version"], ["compare", "--version"]])
def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    dispatch(arguments)
    assert capsys.readouterr().out == f"dml {__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        dispatch(["trian\x1b", "loss=rll"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: trian\\x1b: no such command; nearest: train; dml --help lists all\n"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - HYDRA))
def test_help_fits_a_terminal_and_has_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        dispatch([name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: dml {name} ")
    assert f"\nexamples:\n  dml {name}" in text
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "loss=rl"], "loss=rl: no such choice; nearest: rll"),
        (["evaluate", "checkpoint=/nowhere.ckpt"], "checkpoint=/nowhere.ckpt: no such file"),
        (["inspect", "dataset=sob"], "dataset=sob: no such choice; nearest: sop"),
        (["serve"], "the following arguments are required: INDEX; dml serve --help lists all"),
        (["compare", "/nowhere"], "/nowhere: no finished run in it"),
        (["embed", "/nowhere", "/tmp"], "the following arguments are required: --output; dml embed --help"),
        (["embed", "/nowhere", "/none", "--output", "a.csv"], "--output a.csv: the name must end with .parquet or"),
        (["embed", "/nowhere", __file__, "--output", "a.npz"], "/nowhere: nothing is there"),
        (["index", "/nowhere", "/none.jpg"], "--output FOLDER: the folder of the index is missing"),
        (["search", "/nowhere", "a.jpg"], "/nowhere: no index there; dml index"),
        (["search", "/nowhere", "a.jpg", "-k", "0"], "-k: 0 is not a whole number above 0"),
        (["study", "rll-0"], "rll-0: no study of this name; nearest: rll-"),
        (["study", "rll-V", "run"], "rll-V wants Stanford_Online_Products: give --data /data"),
        (["study", "rll-V", "--launcher", "slurm"], "--launcher slurm: no such choice; nearest: submitit"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dml", *arguments])
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        dispatch(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


LOADED = """
import sys
from dml.__main__ import COMMANDS, dispatch

dispatch(["--help"])
assert not {"argparse", "hydra", "numpy"} & sys.modules.keys()
for name in COMMANDS:
    try:
        dispatch([name, "--help"])
    except SystemExit as end:
        assert not end.code
print("loaded:", *{"faiss", "matplotlib", "pytorch_lightning", "scipy", "timm", "torch"} & sys.modules.keys())
"""


@pytest.mark.pipeline
def test_help_loads_nothing_slow(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


SIGNALED = """
import builtins, os, sys
from dml.__main__ import run_command

import_module = builtins.__import__

def import_or_signal(name, *arguments):
    if name.partition(".")[0] in ("torch", "hydra"):
        os.kill(os.getpid(), {signum})
    return import_module(name, *arguments)

builtins.__import__ = import_or_signal
run_command()
"""


@pytest.mark.first_cases(2)
@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("name", "signum"),
    [*zip(COMMANDS, cycle([signal.SIGINT, signal.SIGTERM]), strict=False), ("train", signal.SIGTERM)],
)
def test_a_signal_while_libraries_are_loaded_is_one_line(name: str, signum: signal.Signals, tmp_path: Path) -> None:
    needed = {"compare": ["run"], "evaluate": ["checkpoint=best.ckpt"]}
    needed |= {"embed": ["run", "photos", "--output=a.npz"], "index": ["run", "photos"], "search": ["index", "a.jpg"]}
    needed |= {"export": ["run", "--output=a.pt2"]}
    needed |= {"serve": ["index"]}
    arguments = needed.get(name, [])
    program = [sys.executable, "-c", SIGNALED.format(signum=int(signum)), name, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 128 + signum, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"stopped by {signum.name}")


@pytest.mark.first_cases(2)
@pytest.mark.pipeline
@pytest.mark.parametrize(
    "program",
    [
        ["-m", "dml", "--help"],
        ["-m", "dml", "train"],
        ["-m", "dml", "search", "index", "a.jpg"],
        [str(ROOT / "train.py")],
        ["-c", "import dml; dml.load('model')"],
        ["-c", "from dml.losses import RankedListLoss"],
    ],
)
def test_a_deleted_working_folder_is_one_line(program: list[str], tmp_path: Path) -> None:
    """Where there is none, a library of torch's ends the process."""
    folder = tmp_path / "deleted"
    folder.mkdir()
    command = ["sh", "-c", 'rmdir ../deleted && exec "$@"', "sh", sys.executable, *program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120, check=False
    )
    line = "error: the working folder was deleted; change to one that exists\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.pipeline
def test_output_that_nobody_reads_ends_a_command_silently(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dml", "train", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=120)
    assert errors == ""
    assert process.returncode == 141
