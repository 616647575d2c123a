"""The report's tables, sheets and mix-ups, each against a slow count."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from report_runs import MakeRun

from dml.evaluation.per_query import QueryTable, choose_lowest, compare_classes, describe_first_match, score_queries
from dml.report.page import choose_headlines, make_metric_tables
from dml.report.run import ReportedRun, read_run
from dml.report.sheets import COLUMNS, Tiles, find_confusions, make_sheets
from dml.runtime.errors import InputError

pytest_plugins = ("report_runs",)


def labeled(labels: Any, neighbors: Any, levels: tuple[str, ...] = ("fine", "coarse"), **changes: Any) -> QueryTable:
    """Queries with these labels (Q, L), whose neighbors are the rows of these numbers (Q, k)."""
    labels, neighbors = np.array(labels), np.array(neighbors)
    paths = np.array([f"{i}.png" for i in range(len(labels))], dtype=object)
    return QueryTable(
        paths,
        labels,
        changes.pop("metrics", {}),
        paths[neighbors],
        labels[neighbors],
        np.zeros(neighbors.shape, dtype=np.float32),
        levels=levels,
        **changes,
    )


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, np.nan]), st.integers(0, 4)), min_size=1), st.integers(1, 6))
def test_chosen_queries(rows: list[tuple[float, int]], count: int) -> None:
    values, classes = np.array([value for value, _ in rows]), np.array([label for _, label in rows])
    chosen = choose_lowest(values, classes, count)
    assert chosen == choose_lowest(values, classes, count)
    lowest = {
        label: min((v for v, other in rows if other == label and not np.isnan(v)), default=np.nan)
        for label in classes.tolist()
    }
    expected = sorted(value for value in lowest.values() if not np.isnan(value))[:count]
    assert [values[i] for i in chosen] == expected
    assert len({classes[i] for i in chosen}) == len(chosen)
    assert max(choose_lowest(np.zeros(1000), np.arange(1000), 5)) > 10  # equal ones are drawn, not taken in order


def test_scores(table: QueryTable, without_ap: QueryTable) -> None:
    score = score_queries(table)
    assert score.name == "AP"
    assert score.values is table.metrics["level0/ap"]
    gaps = {"level0/recall@1": np.where(np.arange(24) == 3, np.nan, without_ap.metrics["level0/recall@1"])}
    score = score_queries(replace(without_ap, metrics=gaps))
    for i in range(24):
        own = [bool(label == table.labels[i, 0]) for label in table.neighbor_labels[i, :, 0]]
        expected = 1 / (1 + own.index(True)) if any(own) else 0
        assert score.values[i] == pytest.approx(np.nan if i == 3 else expected, nan_ok=True)
        words = f"first match at rank {1 + own.index(True)}" if any(own) else "no match in the first 5"
        assert describe_first_match(table, i) == words


def test_unknown_labels_match_nothing() -> None:
    table = labeled([[-1, 0], [-1, 0], [2, 1]], [[1, 2], [0, 2], [0, 1]])
    assert not compare_classes(table).any()
    shown = make_sheets(table, Tiles())["Best"]
    assert {picture.relation for row in shown for picture in row.neighbors} == {"coarser", "other"}


def test_sheets_tell_how_neighbors_are_related() -> None:
    table = labeled([[0, 0], [0, 0], [1, 0], [2, 1]], [[1, 2, 3], [0, 2, 3], [0, 1, 3], [2, 1, 0]])
    tiles = Tiles()
    shown = {row.query.name: row for row in make_sheets(table, tiles, count=3)["Best"]}
    assert next(iter(shown)) == "fine 0"
    row = shown["fine 0"]
    assert row.superclasses == "coarse 0"
    assert row.remarks[0] == "reciprocal rank 100.0 %"
    assert [picture.relation for picture in row.neighbors] == ["same", "coarser", "other"]
    words = [picture.remark.partition(",")[0] for picture in row.neighbors]
    assert words == ["same fine", "same coarse", "other coarse"]


def test_worst_median_and_best(table: QueryTable) -> None:
    values = score_queries(table).values
    by_class = [values[4 * i : 4 * i + 4] for i in range(6)]
    tiles = Tiles()
    found = {
        title: [float(row.remarks[0].split()[1]) for row in rows]
        for title, rows in make_sheets(table, tiles, 2).items()
    }
    assert found["Worst"] == [round(100 * v, 1) for v in sorted(own.min() for own in by_class)[:2]]
    assert found["Best"] == [round(100 * v, 1) for v in sorted((own.max() for own in by_class), reverse=True)[:2]]
    away = sorted(np.abs(own - np.median(values)).min() for own in by_class)[:2]
    assert [abs(v / 100 - np.median(values)) for v in found["Median"]] == pytest.approx(away, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 19)), min_size=2, max_size=20))
def test_mix_ups_are_counted(rows: list[tuple[int, int]]) -> None:
    labels = [[label, 0] for label, _ in rows]
    table = labeled(labels, [[nearest % len(rows)] for _, nearest in rows])
    counts: Counter[tuple[int, int]] = Counter()
    for i, (label, nearest) in enumerate(rows):
        other = rows[nearest % len(rows)][0]
        assert table.labels[i, 0] == label
        if other != label:
            counts[min(label, other), max(label, other)] += 1
    found = find_confusions(table, Tiles(), count=100)
    names = {(f"fine {a}", f"fine {b}"): number for (a, b), number in counts.items()}
    assert {pair.names: pair.mixed_up for pair in found} == names
    sizes = Counter(f"fine {label}" for label, _ in rows)
    assert all(pair.queries == sum(sizes[name] for name in pair.names) for pair in found)
    order = [(pair.mixed_up, pair.mixed_up / pair.queries) for pair in found]
    assert order == sorted(order, reverse=True)
    for pair in found:
        assert 1 <= len(pair.examples) <= min(3, pair.mixed_up)
        assert all({query.name, nearest.name} == set(pair.names) for query, nearest in pair.examples)


def test_queries_without_positives_are_not_mixed_up() -> None:
    metrics = {"level0/recall@1": np.array([np.nan, 0.0, 0.0])}
    table = labeled([[0, 0], [1, 0], [1, 0]], [[1], [0], [0]], metrics=metrics)
    (pair,) = find_confusions(table, Tiles())
    assert (pair.mixed_up, pair.queries) == (2, 2)


def test_tiles_hold_each_picture_once() -> None:
    tiles = Tiles()
    assert [tiles.place(path) for path in ("a", "b", "a")] == [(0, 0), (1, 0), (0, 0)]
    assert (len(tiles), tiles.rows) == (2, 2)
    for i in range(2 * COLUMNS):
        tiles.place(f"more {i}")
    assert tiles.rows == 3
    assert tiles.place(f"more {COLUMNS}") == (2, 1)


def test_tables_of_metrics(make_run: MakeRun) -> None:
    run = read_run(make_run("run"))
    levels, graded = make_metric_tables(run)
    assert list(levels.groups) == ["shape", "family"]
    rows = levels.groups["shape"]
    assert list(rows) == ["before training", "head L", "head H", "all heads"]
    for row, column, name in (("all heads", "AP", "level0/ap"), ("before training", "R@1", "raw/level0/recall@1")):
        assert rows[row][levels.columns.index(column)] == f"{100 * run.metrics[name]:.1f}"
    assert rows["head L"][levels.columns.index("NMI")] == "–"
    assert levels.columns[:4] == ["R@1", "R@2", "R@4", "R@8"]
    assert graded.columns == ["H-AP", "NDCG", "ASI"]
    assert list(graded.groups[""]) == ["all heads"]
    assert levels.notes == []
    left_out = replace(run, metrics={**run.metrics, "level1/queries_without_positives": 1234.0})
    assert "1,234 at level family" in make_metric_tables(left_out)[0].notes[0]
    assert [*choose_headlines(run)] == ["R@1", "MAP@R", "H-AP", "NMI"]
    assert choose_headlines(run)["MAP@R"][1] == "–"


def test_lists_of_one_level_each_have_a_mean(make_run: MakeRun) -> None:
    run = read_run(make_run("run"))
    values = (0.1, 0.2, 0.3, 0.4, 0.2, 0.3)
    names = [f"{scope}/{name}" for scope in ("level0", "level1", "mean") for name in ("ap", "asi")]
    metrics = dict(zip(names, values, strict=True))
    (table,) = make_metric_tables(replace(run, metrics=metrics))
    assert table.columns == ["AP", "ASI"]
    assert {group: rows["after training"] for group, rows in table.groups.items()} == {
        "shape": ["10.0", "20.0"],
        "family": ["30.0", "40.0"],
        "mean of the levels": ["20.0", "30.0"],
    }


def test_a_run_without_heads_or_levels_above(table: QueryTable) -> None:
    one = {"labels": table.labels[:, :1], "neighbor_labels": table.neighbor_labels[:, :, :1]}
    flat = replace(table, **one, levels=("shape",), names=())
    run = ReportedRun("r", {"level0/recall@1": 0.5, "seconds": 3, "step": 1}, flat, "seed: 0\n")
    (only,) = make_metric_tables(run)
    assert only.groups == {"shape": {"after training": ["50.0"]}}


def test_facts_of_a_run(make_run: MakeRun) -> None:
    run = read_run(make_run("run", seed=3))
    assert run.name.endswith("/run")
    assert run.title == "rll on shapes"
    assert run.summarize() == {
        "data set": "shapes",
        "split": "test",
        "loss": "rll (RankedListLoss)",
        "model": "tiny",
        "heads": "L, H",
        "weights": "step 300",
        "seed": "3",
        "checkpoint": "the best on the validation split",
    }
    assert len(run.history) == 30
    assert "val/level0/recall@1" not in run.history[0]


def test_pictures_are_found_from_any_folder(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of a relative dataset.root begin where the run was started."""
    folder, elsewhere = make_run("run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    Image.new("RGB", (4, 3), "red").save(tmp_path / "red.png")
    choices = yaml.safe_load((folder / ".hydra/hydra.yaml").read_text())
    choices["hydra"]["runtime"]["cwd"] = str(tmp_path)
    (folder / ".hydra/hydra.yaml").write_text(yaml.safe_dump(choices))
    for working_folder in (tmp_path, elsewhere):
        monkeypatch.chdir(working_folder)
        assert read_run(folder).read_picture("red.png").shape == (3, 3, 4)
    with pytest.raises(InputError, match=r"blue\.png: no such file; a report shows the images of its run"):
        read_run(folder).read_picture("blue.png")
    (folder / "metrics.csv").unlink()
    (folder / ".hydra/hydra.yaml").unlink()
    assert (read_run(folder).history, read_run(folder).title) == ([], "RankedListLoss on shapes")


def test_a_folder_that_lacks_a_file(make_run: MakeRun) -> None:
    folder = make_run("run")
    for name in ("metrics.json", "per_query.parquet", ".hydra/config.yaml"):
        (folder / name).unlink()
        with pytest.raises(InputError, match=f"{name}.* missing"):
            read_run(folder)
