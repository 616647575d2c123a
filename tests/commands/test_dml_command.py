"""The command ``dml``: its list of commands, their help, and what is wrong with a command line in one line."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dml import __version__
from dml.__main__ import COMMANDS, dispatch

ROOT = Path(__file__).parents[2]
HYDRA = {"train", "evaluate", "prepare", "inspect"}
"""The commands whose help is Hydra's."""


def test_the_list_names_each_command_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["-h"]):
        dispatch(arguments)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) < 80
        assert {*COMMANDS} <= {line.split()[0] for line in lines if line.startswith("  ")}


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["train", "--version"], ["compare", "--version"]):
        dispatch(arguments)
        assert capsys.readouterr().out == f"dml {__version__}\n"


def test_help_fits_a_terminal_and_has_examples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS.keys() - HYDRA:
        with pytest.raises(SystemExit, match="0"):
            dispatch([name, "--help"])
        text = capsys.readouterr().out
        assert f"\nexamples:\n  dml {name}" in text
        assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian\x1b", "loss=rll"], r"trian\\x1b: .*nearest: train"),
        (["train", "loss=rl"], "loss=rl: .*nearest: rll"),
        (["evaluate", "checkpoint=/nowhere.ckpt"], "checkpoint=/nowhere.ckpt: no such file"),
        (["inspect", "dataset=sob"], "dataset=sob: .*nearest: sop"),
        (["serve"], ".*INDEX; dml serve --help"),
        (["compare", "/nowhere"], "/nowhere: no finished run"),
        (["embed", "/nowhere", "/tmp"], ".*--output; dml embed --help"),
        (["embed", "/nowhere", "/none", "--output", "a.csv"], "--output a.csv: .*.parquet or"),
        (["embed", "/nowhere", __file__, "--output", "a.npz"], "/nowhere: nothing is there"),
        (["index", "/nowhere", "/none.jpg"], "--output FOLDER: "),
        (["search", "/nowhere", "a.jpg"], "/nowhere: no index there; dml index"),
        (["search", "/nowhere", "a.jpg", "-k", "0"], "-k.*: 0 is not a whole number above 0"),
        (["study", "rll-0"], "rll-0: .*nearest: rll-"),
        (["study", "rll-V", "run"], "rll-V wants Stanford_Online_Products: give --data /data"),
        (["study", "rll-V", "--launcher", "slurm"], "--launcher.slurm: .*submitit"),
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
    with pytest.raises(SystemExit, match="2"):
        dispatch(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {message}", line), line
    assert not [*tmp_path.iterdir()]


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


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("arguments", "signum"), [(["train"], signal.SIGTERM), (["search", "index", "a.jpg"], signal.SIGINT)]
)
def test_a_signal_while_libraries_are_loaded_is_one_line(
    arguments: list[str], signum: signal.Signals, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", SIGNALED.format(signum=int(signum)), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 128 + signum, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"stopped by {signum.name}")


@pytest.mark.pipeline
@pytest.mark.parametrize("program", [["-m", "dml", "train"], [str(ROOT / "train.py")], ["-c", "import dml"]])
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
