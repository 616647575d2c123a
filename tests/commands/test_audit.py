"""``dml audit``: planted errors of a tiny folder, its files, the way back of decisions, and mistakes in one line."""

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Here, Refused
from PIL import Image

from dml.commands import audit as audit_job
from dml.report.page import audit_report

SETTINGS = ["model=small_cnn", "transform=imagenet", "transform.size=32", "processes=1", "data.num_workers=0"]
CLASSES, IMAGES = 8, 8


def draw(label: int, number: int) -> Image.Image:
    """A picture of its class's colors, with noise of its own."""
    rng = np.random.default_rng((label, number))
    low = np.random.default_rng(label).integers(0, 256, (4, 4, 3))
    pixels = np.kron(low, np.ones((12, 12, 1))) + rng.normal(0, 12, (48, 48, 3)) + rng.integers(-20, 20, 3)
    coarse = np.kron(rng.normal(0, 25, (6, 6, 3)), np.ones((8, 8, 1)))
    return Image.fromarray((pixels + coarse).clip(0, 255).astype(np.uint8))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight classes of eight pictures in train/ and test/, with one error of each kind."""
    root = tmp_path / "mine"
    for label in range(CLASSES):
        folder = root / ("train" if label < 4 else "test") / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(IMAGES):
            draw(label, number).save(folder / f"{number}.png")
    shutil.move(root / "train/class0/0.png", root / "train/class1/swapped.png")
    draw(2, 5).resize((40, 40)).save(root / "test/class4/copy.jpg", quality=80)
    (root / "test/class5/0.png").write_text("damaged")
    Image.new("RGB", (48, 48), (90, 120, 30)).save(root / "test/class6/flat.png")
    draw(7, 1).resize((300, 40)).save(root / "test/class7/long.png")
    (root / "train/single").mkdir()
    draw(20, 0).save(root / "train/single/0.png")
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def audit(here: Here, mine: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """audit("shown=5") -> what the command prints."""

    def audit(*overrides: str) -> str:
        here("audit", "dataset=folder", f"dataset.root={mine}", *SETTINGS, "output=found", *overrides)
        return capfd.readouterr().out

    return audit


def read_rows() -> list[dict[str, str]]:
    with Path("found/audit.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(rows: list[dict[str, str]]) -> None:
    with Path("found/audit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def find(issue: str) -> list[dict[str, str]]:
    return [row for row in read_rows() if row["issue"] == issue]


def test_planted_errors_are_found_and_decisions_come_back(
    audit: Callable[..., str], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    printed = audit()
    doubtful = {row["path"]: (row["label"], row["other_label"]) for row in find("doubtful_label")}
    assert doubtful["train/class1/swapped.png"] == ("class1", "class0")
    assert {*doubtful} <= {"train/class1/swapped.png", "test/class4/copy.jpg", "test/class6/flat.png"}
    assert len(find("near_duplicate")) == 2  # and the long picture, which is a scaled one
    (copy,) = (row for row in find("near_duplicate") if "copy.jpg" in row["path"] + row["other_path"])
    assert {copy["path"], copy["other_path"]} == {"train/class2/5.png", "test/class4/copy.jpg"}
    assert copy["path"] == "train/class2/5.png"  # the test keeps its image
    assert "in train and in test: the test flatters the training; of two classes" in copy["remark"]
    assert [row["path"] for row in find("broken_image")] == ["test/class5/0.png"]
    assert [row["label"] for row in find("small_class")] == ["single"]
    odd = {row["path"]: row["remark"] for row in find("odd_image")}
    assert "of one color" in odd["test/class6/flat.png"]
    assert "7.5 times as long as wide" in odd["test/class7/long.png"]
    assert {row["action"] for row in read_rows()} == {""}
    page = Path("found/audit.html").read_text()
    assert page.count('<li class="query-result">') == len(read_rows())
    assert "train/class1/swapped.png" in page
    assert max(map(len, printed.splitlines())) <= 150

    rows = read_rows()
    for row in rows:
        row["action"] = {"doubtful_label": "relabel", "small_class": "drop", "broken_image": "drop"}.get(
            row["issue"], "keep" if row["issue"] == "odd_image" else ""
        )
    decided = [row for row in rows if row["action"]]
    write_rows(rows)
    printed = audit()
    assert f"kept     {len(decided)} lines of the earlier audit.csv" in printed
    after = read_rows()
    assert after[: len(decided)] == decided
    assert {path: path.read_bytes() for path in before} == before

    def decide_meanwhile(*arguments: Any) -> str:
        write_rows([*after[:-1], after[-1] | {"action": "keep"}])
        return audit_report(*arguments)

    monkeypatch.setattr(audit_job, "audit_report", decide_meanwhile)
    audit()
    assert [row for row in read_rows() if row["action"]] == [*decided, after[-1] | {"action": "keep"}]


def test_a_checkpoint_compares_by_its_embeddings(here: Here, audit: Callable[..., str], mine: Path) -> None:
    (mine / "test/class5/0.png").unlink()
    shutil.rmtree(mine / "train/single")
    given = ["evaluation.report=null", "evaluation.sheet=null", "evaluation.raw=false", "evaluation.selection=last"]
    given += ["trainer.max_steps=2", "trainer.val_check_interval=1", "sampler.classes_per_batch=2"]
    data = ["dataset=folder", f"dataset.root={mine}", "model=small_cnn", "transform=imagenet", "transform.size=32"]
    here("train", *data, *given, "data.num_workers=0", "hydra.run.dir=run", "heads.initial=null")
    printed = audit("checkpoint=run/checkpoints/last.ckpt")
    assert "what the audit finds" in printed
    assert "the network of run" in Path("found/audit.html").read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("shown=0", "shown=0: must be a whole number, 1 or more and 250 at most"),
        ("audit.mixed=2", "audit.mixed=2: a number from 0 to 1"),
        ("audit.neighbors=many", "audit.neighbors=many: must be a whole number"),
        ("audit.neighbors=0", "audit.neighbors=0: a number above 0"),
        ("max_images=0", "max_images=0: must be a whole number, 1 or more, or null"),
        ("checkpoint=/none.ckpt", "checkpoint=/none.ckpt: no such file"),
        ("data.cache=null", "data.cache=null: auto, or the folder to write to"),
        ("model.backbone.weights=/none.pth", "model.backbone.weights=/none.pth: no such file"),
    ],
)
def test_mistakes_are_one_line(refused: Refused, mine: Path, override: str, message: str) -> None:
    line = refused("dataset=folder", f"dataset.root={mine}", *SETTINGS, override, command="audit")
    assert re.search(re.escape(message), line), line
