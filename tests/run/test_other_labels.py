"""A run is tested once more with the labels that another data set gives the same images."""

from pathlib import Path

from conftest import PLAIN, Here, Refused
from runs import metrics

from dml.runtime.run_folder import RunFolder

OTHER = "dataset@evaluation.other_labels.again=emoji"


def test_the_metrics_by_other_labels_stand_beside_the_runs_own(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    roots = [f"dataset.root={small_emoji}", "evaluation.other_labels.again.root=${dataset.root}"]
    counts = "evaluation.other_labels.again.counts=null"
    report = "evaluation.report={neighbors: 3, map: false, seed: 0}"
    small = [*PLAIN, "model.heads=[H]", "evaluation.threshold=null", "trainer.max_steps=1", report]
    here("train", f"+{OTHER}", *roots, counts, *small, f"hydra.run.dir={tmp_path}")
    found = metrics(tmp_path)
    own = {name: value for name, value in found.items() if name.startswith("level") or name in ("h_ap", "ndcg", "asi")}
    other = {name.removeprefix("again/"): value for name, value in found.items() if name.startswith("again/")}
    assert own.items() <= other.items()
    assert other["level0/recall@1"] > 0
    assert (tmp_path / "report.html").exists()
    assert roots[1] in RunFolder(tmp_path).overrides
    evaluated = tmp_path / "evaluated"
    here("evaluate", f"checkpoint={tmp_path / 'checkpoints' / 'last.ckpt'}", f"hydra.run.dir={evaluated}")
    assert metrics(evaluated)["again/level0/recall@1"] > 0


def test_other_images_are_told_before_the_training(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    line = refused(
        "+dataset@evaluation.other_labels.all=emoji",
        f"dataset.root={small_emoji}",
        *PLAIN,
        f"hydra.run.dir={tmp_path}",
    )
    assert "evaluation.other_labels.all: emoji has 3030 test images, which aren't the " in line
    assert not (tmp_path / "checkpoints").exists()
