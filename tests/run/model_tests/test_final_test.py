"""What a test leaves behind for data sets with queries and galleries, and with a list for each level."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from conftest import ONE_HEAD, SMALL, Here, Refused
from stored_arrays import stored_arrays

from dml.evaluation.per_query import read_queries


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["inshop", "dyml_vehicle", "dyml_product"])
def test_a_run_is_judged_by_the_data_sets_own_lists(
    name: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = import_module(f"trees.{name}").TREE
    root, folder = tmp_path / "data", tmp_path / "run"
    root.mkdir()
    tree.build(root)
    smaller = ["sampler.classes_per_batch=2", "trainer.max_steps=2", "trainer.val_check_interval=2"]
    report = "evaluation.report={neighbors:2,map:false,seed:0}"
    given = [f"dataset={name}", f"dataset.root={root}", "dataset.folds=2", "transform=emoji", report]
    here("train", *SMALL, *given, *smaller, "evaluation.raw=false", f"hydra.run.dir={folder}")

    found = json.loads((folder / "metrics.json").read_text())
    queries = read_queries(folder / "per_query.parquet")
    images = tree.counts
    if name == "inshop":
        assert len(queries) == images["query"]["images"]
        assert "mean/recall@1" not in found
    else:
        split = "query" if name == "dyml_vehicle" else "test"
        assert len(queries) == images[split]["images"]
        at_levels = [found[f"level{level}/asi"] for level in range(3)]
        assert found["mean/asi"] == pytest.approx(np.mean(at_levels))
    assert np.nanmean(queries.metrics["level0/ap"]) == pytest.approx(found["level0/ap"])
    assert (folder / "retrieval.png").exists()
    assert "</html>" in (folder / "report.html").read_text()


def test_a_reranking_is_tested_beside_the_plain_ranking(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, reranking = tmp_path / "run", "evaluation.reranking=k_reciprocal"
    short = ["trainer.max_steps=1", "trainer.val_check_interval=1", "evaluation.metrics=[recall,map@r]"]
    given = [*SMALL, *short, f"dataset.root={small_emoji}", "evaluation.raw=false", reranking]
    here("train", *given, f"hydra.run.dir={run}", "evaluation.report={neighbors:2,map:false,seed:0}")
    metrics = json.loads((run / "metrics.json").read_text())
    assert "reranked/k_reciprocal/level0/map@r" in metrics
    assert "+ k-reciprocal" in (run / "report.html").read_text()
    assert "k-reciprocal" in capfd.readouterr().out

    again = tmp_path / "again"
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={again}")
    assert (
        metrics.items()
        >= {
            k: v for k, v in json.loads((again / "metrics.json").read_text()).items() if k.startswith("reranked/")
        }.items()
    )


def test_a_test_without_pictures_leaves_none_of_an_earlier_test(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    run, short = tmp_path / "run", ["trainer.max_steps=2", "trainer.val_check_interval=2"]
    here("train", *ONE_HEAD, *short, f"dataset.root={small_emoji}", f"hydra.run.dir={run}")
    evaluate = [f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path / 'again'}"]
    files = [tmp_path / "again" / name for name in ("retrieval.png", "per_query.parquet", "report.html")]
    pictures = "evaluation.sheet={queries:2,neighbors:20,seed:0}", "evaluation.report={neighbors:2,map:false,seed:0}"
    here("evaluate", *evaluate, *pictures)
    assert all(file.exists() for file in files)
    here("evaluate", *evaluate, "evaluation.sheet=null", "evaluation.report=null")
    assert not any(file.exists() for file in files)
    assert "per_query" not in (tmp_path / "again" / "metrics.json").read_text()


def test_recall_among_fixed_neighbors_is_of_those_before_the_training(
    here: Here, refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    run, short = (
        tmp_path / "run",
        ["trainer.max_steps=2", "trainer.val_check_interval=2", "evaluation.metrics=[recall]"],
    )
    given = [*ONE_HEAD, *short, f"dataset.root={small_emoji}", "evaluation.fixed_neighbors=3"]
    here("train", *given, f"hydra.run.dir={run}")
    kept = stored_arrays(run / "fixed_neighbors.npz")
    found = json.loads((run / "metrics.json").read_text())
    assert kept["neighbors"].shape == (len(kept["rows"]), 3)
    assert found["fixed/level0/recall@4"] == found["fixed/level0/recall@8"] <= 1

    evaluate = [f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path / 'again'}"]
    here("evaluate", *evaluate)
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert {name: again[name] for name in found if "/" in name} == {name: found[name] for name in found if "/" in name}
    np.savez(run / "fixed_neighbors.npz", rows=kept["rows"][:2], neighbors=kept["neighbors"][:2])
    line = "fixed_neighbors.npz, which a training leaves, isn't there or is of other images than the"
    assert line in refused(*evaluate, command="evaluate")
    (run / "fixed_neighbors.npz").unlink()
    assert line in refused(*evaluate, command="evaluate")
