"""What a test leaves behind for data sets with queries and galleries, and with a list for each level."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ONE_HEAD, SMALL, Here, Refused
from runs import train
from stored_arrays import stored_arrays

from dml.evaluation.per_query import read_queries
from dml.runtime.run_folder import RunFolder

REPORT = "evaluation.report={neighbors:2,map:false,seed:0}"


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
    given = [f"dataset={name}", f"dataset.root={root}", "dataset.folds=2", "transform=emoji", REPORT]
    smaller += ["evaluation.raw=false", "evaluation.clustering=false", "model.heads=[H]"]
    here("train", *SMALL, *given, *smaller, f"hydra.run.dir={folder}")

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


@pytest.fixture(scope="module")
def trained(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is tested with a reranking and among the neighbors before the training, and has a report."""
    given = [*ONE_HEAD, f"dataset.root={small_emoji}", "trainer.max_steps=1", "trainer.val_check_interval=1", REPORT]
    given += ["evaluation.metrics=[recall,map@r]", "evaluation.reranking=k_reciprocal", "evaluation.fixed_neighbors=3"]
    return train(tmp_path_factory.mktemp("trained") / "run", *given)


def read_metrics(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in RunFolder(folder).metrics().items() if "/" in name}


def test_a_reranking_is_tested_beside_the_plain_ranking(trained: Path) -> None:
    assert "reranked/k_reciprocal/level0/map@r" in read_metrics(trained)
    assert "+ k-reciprocal" in (trained / "report.html").read_text()
    assert "k-reciprocal" in (trained / "train.log").read_text()


def test_recall_among_fixed_neighbors_is_of_those_before_the_training(trained: Path) -> None:
    kept = stored_arrays(trained / "fixed_neighbors.npz")
    found = read_metrics(trained)
    assert kept["neighbors"].shape == (len(kept["rows"]), 3)
    assert found["fixed/level0/recall@4"] == found["fixed/level0/recall@8"] <= 1


def test_a_test_repeats_them_and_leaves_no_picture_of_an_earlier_test(
    here: Here, refused: Refused, trained: Path, tmp_path: Path
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    shutil.copytree(trained, run)
    evaluate = [f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={again}"]
    files = [again / name for name in ("retrieval.png", "per_query.parquet", "report.html")]
    here("evaluate", *evaluate, "evaluation.sheet={queries:2,neighbors:20,seed:0}")
    assert read_metrics(again) == read_metrics(run)
    assert all(file.exists() for file in files)
    here("evaluate", *evaluate, "evaluation.sheet=null", "evaluation.report=null", "evaluation.reranking=null")
    assert not any(file.exists() for file in files)
    assert "per_query" not in (again / "metrics.json").read_text()

    neighbors = run / "fixed_neighbors.npz"
    np.savez(neighbors, **{name: values[:2] for name, values in stored_arrays(neighbors).items()})
    line = "fixed_neighbors.npz, which a training leaves, isn't there or is of other images than the"
    assert line in refused(*evaluate, command="evaluate")
    neighbors.unlink()
    assert line in refused(*evaluate, command="evaluate")
