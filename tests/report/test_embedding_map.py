import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dml.evaluation.per_query import QueryTable
from dml.report.charts import draw_map, embedding_map
from dml.report.pictures import choose_queries

pytest_plugins = ("report_runs",)


def clusters(sizes: tuple[int, ...] = (20, 20, 20)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(8)[labels] + 0.05 * rng.normal(size=(len(labels), 8)), labels


def test_neighbors_stay_neighbors() -> None:
    embeddings, labels = clusters()
    places = embedding_map(embeddings)
    assert np.array_equal(places, embedding_map(4 * embeddings))  # the length doesn't count, and nothing is random
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(60, np.inf))
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_a_sample_by_seed() -> None:
    embeddings, _ = clusters()
    for seed in (0, 1):
        drawn = ~np.isnan(embedding_map(embeddings, points=12, seed=seed)).any(axis=1)
        assert np.array_equal(np.flatnonzero(drawn), choose_queries(60, 12, seed))


def test_whatever_is_embedded_has_a_place_but_fewer_than_5() -> None:
    for rows in (np.zeros((9, 4)), np.ones((40, 4)), np.eye(5), np.arange(6.0)[:, None] - 2):
        assert np.isfinite(embedding_map(rows)).all()
    assert np.isnan(embedding_map(np.eye(4))).all()


def dots_of(drawn: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """{class: places of its dots}, percents of the width from the left and the top."""
    places = {}
    for dots in drawn["dots"]:
        places[dots.name] = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", dots.path)]
    return places


def test_the_drawn_map_keeps_proportions(table: QueryTable) -> None:
    assert table.positions is not None
    positions = table.positions.copy()
    positions[5] = np.nan
    drawn = draw_map(replace(table, positions=positions))
    assert drawn is not None
    assert drawn["points"] == 23
    rows = [i for i in range(24) if i != 5]
    kept, names = positions[rows].astype(np.float64), [table.class_name(int(table.labels[i, 0])) for i in rows]
    dots = dots_of(drawn)
    assert {name: len(places) for name, places in dots.items()} == {name: names.count(name) for name in names}
    found = np.array([dots[name].pop(0) for name in names])
    assert found.min(axis=0).tolist() == [0, 0]
    assert found.max(axis=0).tolist() == [100, drawn["height"]]
    assert drawn["height"] <= 100
    wide = np.linalg.norm(kept[:, None] - kept, axis=2)
    scale = 100 / np.ptp(kept, axis=0).max()
    assert np.linalg.norm(found[:, None] - found, axis=2) == pytest.approx(wide * scale, abs=0.05)


def test_colors_are_those_of_the_finest_level_with_few_classes(table: QueryTable) -> None:
    drawn = draw_map(table)
    assert drawn is not None
    assert drawn["level"] == "shape"
    assert [(dots.name, dots.color) for dots in drawn["dots"]] == [*drawn["colors"].items()]
    assert len({*drawn["colors"].values()}) == 6
    labels = np.stack([np.arange(24), table.labels[:, 1]], axis=1)
    drawn = draw_map(replace(table, labels=labels, names=()))
    assert drawn is not None
    assert [*drawn["colors"]] == ["family 0", "family 1", "family 2"]
    for i, dots in enumerate(drawn["dots"]):
        assert (dots.name, dots.color) == (f"shape {i}", drawn["colors"][f"family {labels[i, 1]}"])
    drawn = draw_map(
        replace(
            table, labels=labels[:, :1], neighbor_labels=table.neighbor_labels[:, :, :1], levels=("shape",), names=()
        )
    )
    assert drawn is not None
    assert drawn["colors"] == {}
    assert len({dots.color for dots in drawn["dots"]}) == 24


def test_no_places_no_map(table: QueryTable) -> None:
    assert draw_map(replace(table, positions=None)) is None
    one = replace(table, positions=np.where(np.arange(24)[:, None] == 7, np.ones(2), np.nan).astype(np.float32))
    drawn = draw_map(one)
    assert drawn is not None
    assert [*dots_of(drawn).values()] == [[(0, 0)]]
