"""What a test leaves behind for data sets with queries and galleries, and with a list for each level."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, SMALL, Here

from dml.evaluation.per_query import read_queries


@pytest.mark.parametrize("name", ["inshop", "dyml_vehicle", "dyml_product"])
def test_a_run_is_judged_by_the_data_sets_own_lists(
    name: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data"))
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
