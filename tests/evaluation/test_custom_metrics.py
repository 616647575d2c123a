"""Metrics of a user's own: of each kind, in a configuration, and through a training run."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN

from dml.commands import main
from dml.data.table import ImageTable
from dml.evaluation import Kind, Metric, MetricConfig, evaluate, evaluate_table
from dml.evaluation.names import MetricDescription, describe_metric, describe_stored_metrics, metric_names
from dml.evaluation.per_query import COLUMNS
from dml.report.comparison import compare, find_runs, markdown
from dml.report.run import read_run
from dml.runtime.errors import InputError

EMBEDDINGS = np.random.default_rng(0).normal(size=(60, 4))
LABELS = np.stack([np.arange(60) % 12, np.arange(60) % 4], axis=1)
SIMILARITIES = EMBEDDINGS @ EMBEDDINGS.T / np.outer(*[np.linalg.norm(EMBEDDINGS, axis=1)] * 2)


def nearest_positive(query: int, level: int) -> int:
    """The rank of the nearest positive, by a plain loop."""
    order = [item for item in np.argsort(-SIMILARITIES[query], kind="stable") if item != query]
    return next(rank for rank, item in enumerate(order, 1) if LABELS[item, level] == LABELS[query, level])


FIRST_RANKS = [[nearest_positive(query, level) for query in range(60)] for level in range(2)]


def is_among(ranks: Any, top: int) -> Any:
    """A metric at k whose second parameter isn't called k."""
    return (ranks[:, 0] <= top).double()


CUSTOM = (
    Metric("found", "Found", Kind.AT_K, is_among),
    Metric("first_rank", "First", Kind.LEVEL, lambda ranks: ranks[:, 0], higher_is_better=False),
    Metric("depth", "Depth", Kind.HIERARCHY, lambda ranks, counts, config: counts[:, -1] + config.alpha),
    Metric("clusters", "Clusters", Kind.CLUSTERS, lambda assignment, labels, config: float(assignment.max() + 1)),
)


@pytest.mark.parametrize("with_rankings", [False, True])
def test_a_metric_of_each_kind(with_rankings: bool) -> None:
    metrics = CUSTOM if with_rankings else (CUSTOM[0], CUSTOM[3])  # without rankings, FAISS finds the nearest alone
    values = evaluate(EMBEDDINGS, LABELS, metrics=("recall", *metrics), recall_at=(1, 3), alpha=2.0)
    for level, classes in enumerate((12, 4)):
        ranks = np.array(FIRST_RANKS[level])
        for k in (1, 3):
            assert values[f"level{level}/found@{k}"] == values[f"level{level}/recall@{k}"] == np.mean(ranks <= k)
        assert values[f"level{level}/clusters"] == classes
        if with_rankings:
            assert values[f"level{level}/first_rank"] == pytest.approx(ranks.mean())
    assert values.get("depth", 6) == 4 + 2.0  # four others share both levels


def test_a_block_of_queries_without_positives_has_ranks_too() -> None:
    labels = np.arange(60) // 2
    labels[-1] = 100
    for count in (60, 65):  # of 65 queries the last are ranked by themselves
        alone = np.concatenate([labels, np.arange(200, 200 + count - 60)])
        embeddings = np.random.default_rng(1).normal(size=(count, 4))
        values = evaluate(embeddings, alone, metrics=("recall", *CUSTOM))
        assert values["level0/queries_without_positives"] == 2 + count - 60
        assert values["level0/first_rank"] >= 1


@pytest.mark.parametrize("has_lists", [False, True])
def test_names_and_labels_are_those_of_the_evaluation(has_lists: bool) -> None:
    table = ImageTable(
        paths=np.array([f"{row}.jpg" for row in range(60)]),
        labels=LABELS,
        split=np.full(60, "test"),
        levels=("fine", "coarse"),
        benchmark=np.arange(60) // 12 % 2 if has_lists else np.array((), dtype=np.int64),
    )
    config = MetricConfig(CUSTOM, recall_at=(2,))
    values = evaluate_table(EMBEDDINGS, table, metrics=CUSTOM, recall_at=(2,))
    computed = {name for name in values if not name.endswith("queries_without_positives")}
    names = {
        name
        for name in metric_names(table, config)
        if name.rpartition("/")[2].partition("@")[0] in {metric.name for metric in CUSTOM}
    }
    assert computed == names
    assert {describe_metric(name, CUSTOM).label for name in names} == {"Found@2", "First", "Depth", "Clusters"}


def test_a_kind_may_be_a_string() -> None:
    assert Metric("own", "Own", "level", is_among).kind is Kind.LEVEL  # type: ignore[arg-type]
    with pytest.raises(InputError, match="metric own: kind = 'query', expected one of at_k, within_r, level,"):
        Metric("own", "Own", "query", is_among)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b", "hits@10", "queries_without_positives", "step", *COLUMNS])
def test_a_name_that_metrics_json_could_not_tell_apart_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"metric '{name}': a name must not be empty"):
        Metric(name, "Own", Kind.LEVEL, is_among)


def test_names_are_taken_once() -> None:
    with pytest.raises(InputError, match="two metrics are named found"):
        MetricConfig((CUSTOM[0], CUSTOM[0]))
    with pytest.raises(InputError, match="recall is a packaged metric; give yours another name"):
        MetricConfig((Metric("recall", "R", Kind.AT_K, is_among),))
    labeled = MetricConfig(("map@r", Metric("mine", "MAP@R", Kind.LEVEL, is_among)))  # validations may have both
    with pytest.raises(InputError, match=r"metrics: map@r and mine have the label MAP@R; change one"):
        labeled.check_labels()
    MetricConfig(("map@r", *CUSTOM)).check_labels()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("recall", r"metrics = 'recall': expected a list, such as \[recall\]"),
        (["recall", 5], "metrics: 5 is neither a name nor a metric"),
        (["recall", {"name": "mine", "kind": "level"}], "one of your own has _target_: dml.evaluation.Metric"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MetricConfig(metrics)


@pytest.mark.parametrize("kind", ["level", "within_r", "at_k", "hierarchy"])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.zeros(60), "'ndarray'"),
        (1.5, "'float'"),
        (torch.tensor(1.5), r"a tensor \(\)"),
        (torch.zeros(60, 1), r"a tensor \(60, 1\)"),
    ],
)
def test_a_function_gives_one_value_for_each_query(kind: Kind, values: Any, found: str) -> None:
    metric = Metric("mine", "Mine", kind, lambda *_: values)
    with pytest.raises(InputError, match=rf"metric mine: its function returned {found} for 60 queries; .*\(60,\)"):
        evaluate(EMBEDDINGS, LABELS[:, :1], metrics=(metric,))


def test_a_function_of_clusters_gives_one_number() -> None:
    metric = Metric("mine", "Mine", Kind.CLUSTERS, lambda *_: "many")
    with pytest.raises(InputError, match="metric mine: its function returned 'str'; expected one number"):
        evaluate(EMBEDDINGS, LABELS, metrics=(metric,))


def test_a_metric_without_a_value_is_no_query_without_a_positive() -> None:
    labels = np.repeat(np.arange(25), 3)[:60]  # 20 classes of three
    labels[:20] = np.arange(10).repeat(2) + 100  # of which twenty images are ten classes of two
    second = Metric(
        "second", "2nd", Kind.LEVEL, lambda ranks: torch.where(ranks[:, 1:2].isinf(), torch.nan, ranks[:, 1:2])[:, 0]
    )
    for metrics in [(second,), ("recall", second)]:
        values = evaluate(EMBEDDINGS, labels, metrics=metrics)
        assert values["level0/queries_without_positives"] == sum(np.bincount(labels)[labels] == 1)
        assert values["level0/second"] >= 2
    pairs = np.arange(60) // 2
    padded = Metric("second", "2nd", Kind.LEVEL, lambda ranks: torch.full((len(ranks),), torch.nan))
    values = evaluate(EMBEDDINGS, pairs, metrics=(padded,))
    assert values["level0/queries_without_positives"] == 0
    assert np.isnan(values["level0/second"])


MODULE = """
def first_rank(ranks, offset):
    return ranks[:, 0] + offset
"""
METRIC = (
    "{_target_: dml.evaluation.Metric, name: first_rank, label: Nearest, kind: level, higher_is_better: false, "
    "shown_in_percent: false, function: {_target_: users_metrics.first_rank, _partial_: true, offset: 1000}}"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_emoji: Path) -> Any:
    """run("train", "loss=rll") trains in tmp_path/run, with a user's module on the path."""
    (tmp_path / "users_metrics.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    defaults = [f"dataset.root={small_emoji}", *PLAIN]

    def run(command: str, *arguments: str) -> None:
        small = defaults if command == "train" and not arguments[0].startswith("resume=") else []
        monkeypatch.setattr(sys, "argv", [f"{command}.py", *small, *arguments])
        main(command)

    yield run
    sys.modules.pop("users_metrics", None)


def test_a_run_computes_monitors_and_shows_a_users_metric(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = f"evaluation.metrics=[recall,{METRIC}]"
    monitor = ["checkpoints.monitor=level0/first_rank", "checkpoints.mode=min"]
    folder = tmp_path / "run"
    run("train", metrics, *monitor, f"hydra.run.dir={folder}")
    values = json.loads((folder / "metrics.json").read_text())
    assert values["level0/first_rank"] > 1000
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if "R@1" in line)
    assert header.split() == ["level", "%", "R@1", "R@2", "R@4", "R@8", "Nearest"]
    assert f" {values['level0/first_rank']:.4g} " in printed
    assert "not in percent: Nearest" in printed
    assert (folder / "checkpoints" / "best.ckpt").exists()
    assert "level0/first_rank" in (folder / "metrics.csv").read_text().splitlines()[0]

    with pytest.raises(SystemExit):  # a file from anyone must not name a module to run
        run("evaluate", f"checkpoint={folder / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path / 'again'}")
    error = capsys.readouterr().err
    assert "users_metrics.first_rank" in error
    assert "trust=true" in error
    assert "dml.evaluation.Metric" not in error
    trusted = [f"checkpoint={folder / 'checkpoints' / 'best.ckpt'}", "trust=true"]
    run("evaluate", *trusted, f"hydra.run.dir={tmp_path / 'again'}")
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["level0/first_rank"] == pytest.approx(values["level0/first_rank"])


@pytest.mark.thorough
def test_reports_and_comparisons_show_the_label_direction_and_unit(run: Any, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, offset in zip(folders, (1000, 2000), strict=True):
        metrics = f"evaluation.metrics=[recall,{METRIC.replace('1000', str(offset))}]"
        report = "evaluation.report={neighbors: 3, map: false, seed: 0}"
        run("train", metrics, report, "trainer.max_steps=2", "trainer.val_check_interval=2", f"hydra.run.dir={folder}")
    value = json.loads((folders[0] / "metrics.json").read_text())["level0/first_rank"]
    page = (folders[0] / "report.html").read_text()
    assert '<th scope="col">Nearest</th>' in page
    assert f"<td>{value:.4g}</td>" in page
    assert "Nearest: not in percent." in page
    assert "first_rank</th>" not in page

    table = markdown(compare(find_runs(folders)), ["level0/first_rank"])
    assert table.splitlines()[0] == "| run | seeds | level0/Nearest |"
    assert [line.split(" | ")[2].strip("| ") for line in table.splitlines()[2:]] == sorted(
        f"{read_run(folder).metrics['level0/first_rank']:.4g}" for folder in folders
    )


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("recall", []),
        (["recall", {"name": "a"}], [MetricDescription("a", "a")]),
        (["${x}", {"_target_": "mine.make", "k": 3}], []),
        (
            [{"name": "a", "label": "A", "higher_is_better": False, "shown_in_percent": False}],
            [MetricDescription("a", "A", False, False)],
        ),
    ],
)
def test_stored_metrics_are_described_without_building_them(metrics: Any, expected: list[MetricDescription]) -> None:
    assert list(describe_stored_metrics({"evaluation": {"metrics": metrics}})) == expected
    assert describe_stored_metrics({}) == describe_stored_metrics({"evaluation": None}) == ()


def test_a_monitor_and_its_mode_must_agree(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = f"evaluation.metrics=[recall,{METRIC}]"
    with pytest.raises(SystemExit):
        run("train", metrics, "checkpoints.monitor=level0/first_rank", f"hydra.run.dir={tmp_path / 'run'}")
    assert (
        "checkpoints.mode=max: must be min, as smaller values of level0/first_rank are better"
        in capsys.readouterr().err
    )
