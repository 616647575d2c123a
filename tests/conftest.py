import csv
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import pytest

from dml.run import main

# many small jobs: threads would only wait for each other; set before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}

ROOT = Path(__file__).parents[1]
SMALL = [
    "dataset.counts=null",
    "transform.size=32",
    "model.embed_dim=8",
    "sampler.classes_per_batch=4",
    "sampler.images_per_class=2",
    "data.num_workers=0",
    "trainer.max_steps=6",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=2",
    "evaluation.report=null",
]
"""Overrides that make any run take seconds."""


def _slice_of_emoji(path: Path, subgroups: Sequence[str]) -> Path:
    whole = resources.files("dml.data") / "assets" / "emoji.zip"
    with zipfile.ZipFile(str(whole)) as source, zipfile.ZipFile(path, "w") as target:
        rows = list(csv.DictReader(io.StringIO(source.read("table.csv").decode())))
        kept = [row for row in rows if row["subgroup"] in subgroups]
        table = io.StringIO()
        writer = csv.DictWriter(table, rows[0])
        writer.writeheader()
        writer.writerows(kept)
        target.writestr("table.csv", table.getvalue())
        for row in kept:
            target.writestr(row["path"], source.read(row["path"]))
    return path


@pytest.fixture(scope="session")
def small_emoji(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a few subgroups of the embedded data set, 39 classes."""
    folder = tmp_path_factory.mktemp("emoji")
    return _slice_of_emoji(folder / "emoji.zip", ("food-fruit", "animal-bird", "food-sweet"))


def in_a_process(script: str, *arguments: str) -> str:
    """Runs a script of the project as a user does -> what it printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Here = Callable[..., None]
Refused = Callable[..., str]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a script's command line within this process, which is quicker: here("train", "loss=rll", ...)."""

    def here(command: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{command}.py", *arguments])
        main(command)

    return here


@pytest.fixture
def refused(here: Here, capfd: pytest.CaptureFixture[str]) -> Refused:
    """refused("loss=rl") -> the one line that a user's error is answered with."""

    def refused(*arguments: str, command: str = "train") -> str:
        with pytest.raises(SystemExit) as stopped:
            here(command, *arguments)
        assert stopped.value.code == 2
        lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return refused
