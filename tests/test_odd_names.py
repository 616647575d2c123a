"""Names that mean something to a terminal, to Rich, to Markdown or to HTML, through whole runs."""

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Here, Refused
from PIL import Image

from dml.commands.compare import compare_runs
from dml.evaluation.per_query import read_queries

NAMES = [
    "[red] [bold]x",
    "a\x1b[31mb",
    "line\nend\ttab",
    "$x$ | `y` <b>&amp;",
    "-x :smile: ,'\"{}%s\\",
    "\u202eü😀",
    "\\n [link=x]",
    "plain",
    "[[x]",
    "😀",
]
ROOT_NAME = "[/red] [bold]$x$ :smile: \x1b[31mred"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten classes of three images each, in a folder each."""
    folder, rng = tmp_path / ROOT_NAME, np.random.default_rng(0)
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"[red]{i}.png")
    return folder


def test_they_are_shown_and_change_nothing(
    here: Here, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "[/red] run\x1b[31m"
    arguments = ["dataset=folder", f"dataset.root={root}"]
    here("prepare", *arguments, "processes=1", "sheet.classes=10", "resize=24")
    small = [*SMALL, "sampler.classes_per_batch=2", "trainer.max_steps=2", "trainer.val_check_interval=2"]
    report = "evaluation.report={neighbors:3,map:true,seed:0}"
    here("train", *arguments, *small, report, f"hydra.run.dir={run}", "transform.size=24")
    compare_runs([str(run)])
    out, err = capfd.readouterr()
    for told in (out, err):
        assert "\x1b" not in told
        assert "\u202e" not in told
    for line in ("folder   ", "written  "):
        shown = next(own for own in out.splitlines() if own.startswith(line) and "run" in own)
        assert rf"{tmp_path}/[/red] run\x1b[31m" in shown
    assert rf"{tmp_path}/[/red] [bold]$x$ :smile: \x1b[31mred/.dml" in out

    page = (run / "report.html").read_text(encoding="utf-8")
    assert "\x1b" not in page
    assert "\u202e" not in page
    queries = read_queries(run / "per_query.parquet")
    assert {*queries.names[0]} == {*NAMES}
    assert (run / "retrieval.png").exists()
    assert [path.name for path in (root / ".dml" / "folder").glob("sheet_*.png")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dataset=folder", "dataset.root={root}", "data.max_pixels=500"], r"24 x 24 pixels, at most 500 are decoded"),
        (["dataset=folder", "dataset.root={root}/\x1b[31m"], r"\x1b[31m: no such folder"),
        (["hydra.run.dir=caf\udce9"], r"hydra.run.dir=caf\xe9: not UTF-8"),
    ],
)
def test_errors_say_them_escaped(
    refused: Refused, root: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = [argument.replace("{root}", str(root)) for argument in arguments]
    line = refused(f"hydra.run.dir={tmp_path / 'run'}", *SMALL, "sampler.classes_per_batch=2", *given)
    assert message in line
    assert "\x1b" not in line


def test_a_working_folder_that_is_not_utf8(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    monkeypatch.chdir(folder.decode(errors="surrogateescape"))
    assert r"caf\xe9: not UTF-8" in refused("dataset=emoji")
