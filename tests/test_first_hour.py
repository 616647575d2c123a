"""A stranger's first hour: the commands of docs/own_data.md as they stand there."""

import re
import shlex
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, ROOT
from small_networks import TWO_CONVOLUTIONS

from dml.__main__ import dispatch
from dml.data.image_files.contents import read_content
from dml.data.readers.emoji import read
from dml.runtime.run_folder import folders_below

pytestmark = pytest.mark.pipeline

CLASSES = 24
TINY = [value for value in PLAIN if not value.startswith(("dataset.", "sampler.", "evaluation."))]
"""Overrides that make a run take seconds; data, batches and evaluation stay as the page says."""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder ``mine`` of class folders from the embedded drawings, and work in the folder above it."""
    table = read(None)
    labels = table.labels[:, 0]
    for label in islice(np.unique(labels).tolist(), CLASSES):
        (tmp_path / "mine" / f"class{label}").mkdir(parents=True)
        for number, row in enumerate(np.flatnonzero(labels == label).tolist()):
            (tmp_path / "mine" / f"class{label}" / f"{number}.webp").write_bytes(read_content(table.paths[row]))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine"


def read_commands(page: str, section: str) -> list[list[str]]:
    """Return the commands of a section of a page of docs, each as a list of arguments."""
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    [body] = [text for text in sections if text.startswith(f"{section}\n")]
    return [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.*)$", body, flags=re.MULTILINE)]


def run(command: list[str]) -> None:
    """Run a command of the docs: ``dml NAME ...`` or ``python NAME.py ...``; a training is made tiny."""
    arguments = command[1:] if command[0] == "dml" else [Path(command[1]).stem, *command[2:]]
    if arguments[0] == "train":
        arguments += [*TINY, *TWO_CONVOLUTIONS]
    dispatch(arguments)


def test_the_first_hour_runs_as_it_is_written(mine: Path, capfd: pytest.CaptureFixture[str]):
    commands = read_commands("own_data.md", "The first hour")
    assert [command[:2] for command in commands] == [
        ["dml", "prepare"],
        ["python", "train.py"],
        ["python", "train.py"],
        ["python", "train.py"],
        ["dml", "compare"],
        ["python", "train.py"],
    ]
    for command in commands:
        run(command)
    runs = [folder for folder in folders_below(mine.parent) if not folder.is_evaluation]
    assert len(runs) == 6  # the quick one, one, three of a sweep, and one on all classes
    assert all(folder.is_finished and folder.report_file.exists() for folder in runs)
    assert [folder.metrics()["split"] for folder in runs].count("val") == 1
    printed = capfd.readouterr().out
    assert "its metrics say nothing" in printed
    assert all(f"loss={loss}" in printed for loss in ("rll", "multi_similarity", "proxy_anchor"))
