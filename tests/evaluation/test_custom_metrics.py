"""Metrics of a user's own: of each kind, and in a configuration; `test_extensions` trains with one."""

from typing import Any

import numpy as np
import pytest
import torch
from image_tables import make_table

from dml.data.table import ImageTable
from dml.evaluation import Kind, Metric, MetricConfig, evaluate, evaluate_table
from dml.evaluation.metric import metric_names
from dml.evaluation.monitor import check_monitor
from dml.evaluation.names import MetricDescription, describe_metric, describe_stored_metrics
from dml.evaluation.per_query import COLUMNS
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
    lists = {"benchmark": np.arange(60) // 12 % 2} if has_lists else {}
    table = make_table(LABELS, levels=("fine", "coarse"), **lists)
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
    with pytest.raises(InputError, match="metric own: kind=query"):
        Metric("own", "Own", "query", is_among)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b", "hits@10", "queries_without_positives", "step", *COLUMNS])
def test_a_name_that_metrics_json_could_not_tell_apart_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"metric '{name}'"):
        Metric(name, "Own", Kind.LEVEL, is_among)


@pytest.mark.parametrize("metrics", ["recall", ["recall", 5], ["recall", {"name": "mine", "kind": "level"}], ["rec"]])
def test_what_is_no_metric_is_refused(metrics: Any) -> None:
    with pytest.raises(InputError, match="metrics = "):
        MetricConfig(metrics)


def test_names_are_taken_once() -> None:
    for metrics in ((CUSTOM[0], CUSTOM[0]), (Metric("recall", "R", Kind.AT_K, is_among),)):
        with pytest.raises(InputError, match="metrics: "):
            MetricConfig(metrics)
    labeled = MetricConfig(("map@r", Metric("mine", "MAP@R", Kind.LEVEL, is_among)))  # validations may have both
    with pytest.raises(InputError, match="MAP@R"):
        labeled.check_labels()
    MetricConfig(("map@r", *CUSTOM)).check_labels()


@pytest.mark.parametrize("kind", ["level", "within_r", "at_k", "hierarchy"])
def test_a_function_gives_one_value_for_each_query(kind: Kind) -> None:
    for values in (np.zeros(60), 1.5, torch.tensor(1.5), torch.zeros(60, 1)):
        metric = Metric("mine", "Mine", kind, lambda *_, values=values: values)
        with pytest.raises(InputError, match="metric mine: its function returned"):
            evaluate(EMBEDDINGS, LABELS[:, :1], metrics=(metric,))


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


def test_a_monitor_and_its_mode_must_agree() -> None:
    table = ImageTable(np.array(["a", "b"]), np.array([[0], [0]]), np.full(2, "val"), ("class",))
    test = MetricConfig(("recall", CUSTOM[1]))
    check_monitor("level0/first_rank", "min", table, test, ["L"], [])
    with pytest.raises(InputError, match="mode=max: must be min"):
        check_monitor("level0/first_rank", "max", table, test, ["L"], [])


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
