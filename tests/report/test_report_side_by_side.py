from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import MakeRun

from dml.data.table import UNKNOWN
from dml.evaluation.per_query import QueryTable
from dml.report.run import ReportedRun, read_run
from dml.report.sheets import Tiles
from dml.report.side_by_side import (
    align_queries,
    choose_changed_queries,
    compare_metrics,
    compare_parts,
    compare_settings,
    count_outcomes,
)
from dml.report.statistics import mean_difference
from dml.runtime.errors import InputError

pytest_plugins = ("report_runs",)


@pytest.fixture
def runs(make_run: MakeRun) -> tuple[ReportedRun, ReportedRun]:
    return read_run(make_run("a", seed=0)), read_run(make_run("b", seed=1))


def reordered(table: QueryTable, order: Any, root: str | None = None) -> QueryTable:
    """Its rows in another order, its images in another folder."""

    def moved(paths: Any) -> Any:
        names = [path if root is None else f"{root}/{Path(path).name}" for path in paths.ravel().tolist()]
        return np.array(names, dtype=object).reshape(paths.shape)

    return replace(
        table,
        paths=moved(table.paths[order]),
        labels=table.labels[order],
        metrics={name: values[order] for name, values in table.metrics.items()},
        neighbors=moved(table.neighbors[order]),
        neighbor_labels=table.neighbor_labels[order],
        similarities=table.similarities[order],
        positions=None,
    )


@pytest.mark.parametrize("root", [None, "/elsewhere"])
def test_queries_are_matched_by_path(runs: tuple[ReportedRun, ReportedRun], root: str | None) -> None:
    a, b = runs
    order = np.random.default_rng(0).permutation(24)
    found = align_queries(a, replace(b, queries=reordered(b.queries, order, root))).queries
    expected = reordered(b.queries, np.arange(24))
    assert found.paths.tolist() == a.queries.paths.tolist()
    assert found.neighbors.tolist() == expected.neighbors.tolist()
    for name, values in expected.metrics.items():
        assert np.array_equal(found.metrics[name], values)
    for name in ("labels", "neighbor_labels", "similarities"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))


def test_an_image_may_be_a_query_of_several_lists(runs: tuple[ReportedRun, ReportedRun]) -> None:
    twice = np.repeat(np.arange(24), 2)
    a, b = (replace(run, queries=reordered(run.queries, twice)) for run in runs)
    score = np.arange(48.0)
    b = replace(b, queries=replace(b.queries, metrics={"level0/ap": score}))
    assert np.array_equal(align_queries(a, b).queries.metrics["level0/ap"], score)


def test_other_queries_are_refused(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    with pytest.raises(InputError, match="different queries, 24 and 23"):
        align_queries(a, replace(b, queries=reordered(b.queries, np.arange(23))))
    paths = b.queries.paths.copy()
    paths[3] = paths[3].replace("03.png", "other.png")
    with pytest.raises(InputError, match=r"different queries, .*03\.png is in the first alone"):
        align_queries(a, replace(b, queries=replace(b.queries, paths=paths)))
    with pytest.raises(InputError, match="different labels"):
        align_queries(a, replace(b, queries=replace(b.queries, labels=b.queries.labels[::-1])))


def with_another_training_class(run: ReportedRun) -> ReportedRun:
    """The run as it is with a training class more, whose name comes first: the numbers of the other classes shift."""
    table = run.queries
    shift = (table.labels >= 0).astype(np.int64)
    return replace(
        run,
        queries=replace(
            table,
            labels=table.labels + shift,
            neighbor_labels=table.neighbor_labels + (table.neighbor_labels >= 0),
            names=tuple(("another", *names) for names in table.names),
        ),
    )


def test_classes_are_matched_by_name(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    order = np.random.default_rng(0).permutation(24)
    expected = align_queries(a, b).queries
    shifted = with_another_training_class(replace(b, queries=reordered(b.queries, order)))
    found = align_queries(a, shifted).queries
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.neighbor_labels, expected.neighbor_labels)
    assert found.names == tuple((*names, "another") for names in expected.names)
    lists = in_two_lists(a), with_another_training_class(in_two_lists(b))
    assert np.array_equal(align_queries(*lists).queries.labels, lists[0].queries.labels)  # UNKNOWN stays


def test_a_class_that_the_first_run_lacks_keeps_its_name(runs: tuple[ReportedRun, ReportedRun]) -> None:
    b = with_another_training_class(runs[1])
    neighbor_labels = b.queries.neighbor_labels.copy()
    neighbor_labels[3, 0] = 0  # the class "another", which is in the gallery of the second run alone
    b = replace(b, queries=replace(b.queries, neighbor_labels=neighbor_labels))
    found = align_queries(runs[0], b).queries
    assert [found.class_name(found.neighbor_labels[3, 0, level], level) for level in (0, 1)] == ["another", "another"]


def test_other_names_of_the_same_queries_are_refused(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    other = tuple((*reversed(names),) for names in b.queries.names)
    with pytest.raises(InputError, match="different labels"):
        align_queries(a, replace(b, queries=replace(b.queries, names=other)))


def test_names_that_stand_twice_match_nothing(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    finest, coarser = b.queries.names
    twice = replace(b, queries=replace(b.queries, names=((*finest[:-1], finest[0]), coarser)))
    assert np.array_equal(align_queries(a, twice).queries.neighbor_labels, b.queries.neighbor_labels)
    with pytest.raises(InputError, match="different labels"):
        align_queries(a, with_another_training_class(twice))
    unnamed = replace(b, queries=replace(b.queries, names=()))
    assert np.array_equal(align_queries(a, unnamed).queries.neighbor_labels, b.queries.neighbor_labels)


def test_differences(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    found = compare_metrics(a, align_queries(a, b))
    assert list(found) == ["shape", "family", "all levels"]
    rows = {row.name: row for row in found["shape"]}
    change = 100 * (b.metrics["level0/ap"] - a.metrics["level0/ap"])
    assert rows["AP"].difference == f"{change:+.1f}".replace("-", "−")
    assert rows["AP"].values == (f"{100 * a.metrics['level0/ap']:.1f}", f"{100 * b.metrics['level0/ap']:.1f}")
    assert rows["NMI"].difference == "+1.0"
    assert rows["NMI"].interval == ""
    assert rows["NMI"].bar is None
    bars = [row.bar for own in found.values() for row in own if row.bar]
    assert len(bars) == 17
    assert min(min(bar) for bar in bars) >= 0
    assert max(max(bar) for bar in bars) <= 100
    assert max(abs(bound - 50) for bar in bars for bound in bar[:2]) == pytest.approx(50)
    values = (run.queries.metrics["level0/ap"] for run in (a, b))
    interval = mean_difference(*values, labels=a.queries.labels[:, 0])
    shown = " to ".join(f"{100 * bound:+.1f}".replace("-", "−") for bound in (interval.low, interval.high))
    assert rows["AP"].interval == shown
    for own in found.values():
        for row in own:
            assert row.sure == (bool(row.bar) and (row.bar[0] > 50 or row.bar[1] < 50))  # type: ignore[index]


def in_two_lists(run: ReportedRun) -> ReportedRun:
    """Every other query is of a list that has classes at the finest level alone, the others at the coarser alone."""
    list_of_query = np.arange(24) % 2
    labels = np.where(list_of_query[:, None] == [0, 1], run.queries.labels, UNKNOWN)
    metrics = {
        name: np.where(list_of_query == int(name.startswith("level1/")), values, np.nan)
        for name, values in run.queries.metrics.items()
        if name.startswith("level")
    }
    return replace(run, queries=replace(run.queries, labels=labels, metrics=metrics))


@pytest.mark.parametrize("level", [0, 1])
def test_a_list_of_queries_has_the_classes_of_its_level(runs: tuple[ReportedRun, ReportedRun], level: int) -> None:
    a, b = map(in_two_lists, runs)
    name, group = f"level{level}/ap", ("shape", "family")[level]
    values, labels = (run.queries.metrics[name] for run in (a, b)), runs[0].queries.labels[:, level]
    expected = mean_difference(*values, labels=labels)
    compared = {row.name: row for row in compare_metrics(a, b)[group]}["AP"]
    assert expected.low < expected.high
    bounds = (f"{100 * bound:+.1f}".replace("-", "−") for bound in (expected.low, expected.high))
    assert compared.interval == " to ".join(bounds)


def test_a_metric_with_a_value_in_one_run_alone_has_no_interval(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    values = b.queries.metrics["level0/ap"].copy()
    values[3] = np.nan
    other = replace(b, queries=replace(b.queries, metrics=b.queries.metrics | {"level0/ap": values}))
    rows = {row.name: row for row in compare_metrics(a, other)["shape"]}
    assert (rows["AP"].interval, rows["AP"].bar) == ("", None)
    assert rows["R@1"].bar is not None


def test_a_single_class_has_no_interval(runs: tuple[ReportedRun, ReportedRun]) -> None:
    one_class = [replace(run, queries=replace(run.queries, labels=np.zeros_like(run.queries.labels))) for run in runs]
    rows = {row.name: row for row in compare_metrics(*one_class)["shape"]}
    assert (rows["AP"].interval, rows["AP"].bar, rows["AP"].sure) == ("", None, False)


def test_the_same_run_twice(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, _ = runs
    rows = [row for own in compare_metrics(a, align_queries(a, a)).values() for row in own]
    assert {row.difference for row in rows} == {"0.0"}
    assert not any(row.sure for row in rows)
    assert compare_settings(a, a) == []
    assert not any(choose_changed_queries(a, align_queries(a, a), Tiles()).values())


def test_parts_are_compared_too(runs: tuple[ReportedRun, ReportedRun]) -> None:
    found = compare_parts(*runs)
    assert list(found) == ["before training", "head L", "head H"]
    assert [row.name for row in found["head L"]["family"]] == ["R@1", "R@2", "R@4", "R@8"]


def test_outcomes_and_the_queries_behind_them(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs[0], align_queries(*runs)
    counted: Counter[tuple[bool, bool]] = Counter()
    for i in range(24):
        label = a.queries.labels[i, 0]
        counted[
            bool(a.queries.neighbor_labels[i, 0, 0] == label), bool(b.queries.neighbor_labels[i, 0, 0] == label)
        ] += 1
    found = count_outcomes(a, b)
    expected = [counted[pair] for pair in ((True, True), (True, False), (False, True), (False, False))]
    assert [found.both, found.only_a, found.only_b, found.neither] == expected
    assert min(expected) > 0
    lists = choose_changed_queries(a, b, Tiles())
    assert list(lists) == ["Right in A, wrong in B", "Wrong in A, right in B"]
    for rows, (ours, theirs) in zip(lists.values(), (("same", "other"), ("other", "same")), strict=True):
        assert rows
        assert len({row.query.name for row in rows}) == len(rows)
        for row in rows:
            first = [neighbors[0].relation for neighbors in row.neighbors]
            assert [relation == "same" for relation in first] == [ours == "same", theirs == "same"]
            assert [remark[:2] for remark in row.remarks] == ["A:", "B:"]


def test_settings_that_differ(runs: tuple[ReportedRun, ReportedRun]) -> None:
    a, b = runs
    assert compare_settings(a, b) == [("loss.margin", "0.4", "1.4"), ("seed", "0", "1")]
    shorter = replace(b, config="seed: 0\nextra: {}\n")
    found = {key: (ours, theirs) for key, ours, theirs in compare_settings(a, shorter)}
    assert found["loss.margin"] == ("0.4", "–")
    assert found["extra"] == ("–", "{}")
    assert "seed" not in found
