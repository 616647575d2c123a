"""What the numbers of a page are of: read from configurations, and from the runs that stored it."""

from pathlib import Path
from typing import Any

import pytest

from dml.report.provenance import describe_configuration, join_facts, merge_facts
from dml.runtime.run_folder import RunFolder
from dml.studies.experiments import describe_training
from dml.studies.paper_tables import read_tables
from dml.studies.runs import Run
from dml.studies.study import Training

EMOJI = "leaderboard/emoji"


@pytest.mark.parametrize(
    ("overrides", "fact", "value"),
    [
        ((), "vector", "192 to 320 dimensions as the validation chooses heads, cosine"),
        (("heads.choose=false",), "vector", "320 dimensions, cosine"),
        (("evaluation.selection=last",), "vector", "320 dimensions, cosine"),
        (("model.embed_dim=64", "model.heads=[M,H]", "heads.choose=false"), "vector", "128 dimensions, cosine"),
        ((), "first weights", "ImageNet-1k, packaged"),
        (("model.backbone.weights=null",), "first weights", "random"),
        ((), "checkpoint", "the best on the validation split"),
        (("evaluation.selection=test",), "checkpoint", "the best on the test split"),
        ((), "split", "test"),
        (("evaluation.split=val",), "split", "val"),
    ],
)
def test_facts_are_those_of_the_configuration(overrides: tuple[str, ...], fact: str, value: str) -> None:
    assert describe_training(Training(EMOJI, overrides))[fact] == value


def test_what_finished_runs_stored_counts(tmp_path: Path) -> None:
    training = Training(EMOJI)
    runs = [Run(training, seed, tmp_path / f"seed-{seed}") for seed in range(3)]
    stored: list[dict[str, Any]] = [
        {"vector": "256 dimensions, cosine", "selection": "last", "split": "test", "device": "CPU"},
        {"level0/recall@1": 0.5},
    ]
    for run, metrics in zip(runs, stored, strict=False):
        run.folder.mkdir()
        RunFolder(run.folder).write_metrics(metrics)
    facts = merge_facts(describe_training(training, metrics=run.metrics) for run in runs[:2])
    assert facts["vector"] == "256 dimensions, cosine or 192 to 320 dimensions as the validation chooses heads, cosine"
    assert facts["checkpoint"] == "the last one or the best on the validation split"
    assert facts["split"] == "test"
    assert facts["device"] == "CPU"
    assert (
        describe_training(training, ("M", "H"), runs[0].metrics)["vector"] == "256 dimensions, cosine"
    )  # metrics of these heads alone
    assert describe_training(training, ("L",), runs[0].metrics)["vector"] == "64 dimensions, cosine"


def test_the_usual_value_comes_first_and_others_are_named() -> None:
    sizes = {"a": "64", "b": "128", "c": "128", "d": "32", "e": "64", "f": "128"}
    line = join_facts({name: {"vector": size, "split": "test"} for name, size in sizes.items()})
    assert line == "Vector: 128 (a, e: 64; d: 32). Split: test."
    assert join_facts({}) == ""


def test_what_a_row_does_not_state_is_told() -> None:
    facts = {"old": {"split": "test"}, "new": {"split": "test", "device": "CPU"}}
    assert join_facts(facts) == "Split: test. Device: not stated (new: CPU)."


@pytest.mark.pipeline
def test_the_trainings_of_every_paper_have_facts() -> None:
    """The first of each table: 512 dimensions of a paper's one head, or those that its experiment names."""
    for table in read_tables():
        facts = describe_training(table.trainings[0])
        assert all(facts.values()), table
        assert not any("not stated" in value for value in facts.values()), table


def test_a_size_for_each_head_adds_up() -> None:
    model = {"heads": ["L", "H"], "embed_dim": {"L": 64, "M": 8, "H": 1024}, "backbone": {"weights": None}}
    facts = describe_configuration({"model": model, "evaluation": {"selection": "val"}, "heads": {"choose": True}})
    assert facts["vector"] == "1,024 to 1,088 dimensions as the validation chooses heads, cosine"
    assert facts["first weights"] == "random"
