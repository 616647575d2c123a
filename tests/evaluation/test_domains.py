"""Metrics of several data sets are exactly those of each alone, and their plain mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gloo import on_processes

from dml.data.joined_sets import join_tables
from dml.data.table import UNKNOWN, ImageTable
from dml.evaluation import Evaluator, MetricConfig, evaluate_table
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.items import check_queries
from dml.evaluation.names import metric_names, split_parts
from dml.evaluation.threshold import make_pairs
from dml.report.statistics import average_by_class
from dml.runtime.errors import InputError


def make(seed: int, count: int, depth: int, split: Any, **columns: Any) -> ImageTable:
    classes = np.random.default_rng(seed).integers(0, count // 5, count)
    return ImageTable(
        paths=np.array([f"{seed}/{row}.jpg" for row in range(count)]),
        labels=np.stack([classes // 4**level for level in range(depth)], axis=1),
        split=np.array(np.broadcast_to(split, count)),
        levels=("class", "group", "kind")[:depth],
        **columns,
    )


SPLIT = np.where(np.arange(40) % 4 == 0, "query", "gallery")
EXCLUDED = np.stack([np.arange(0, 40, 4), np.arange(0, 40, 4) + 1], axis=1)
LEVEL = np.arange(60) % 2
LISTED = make(3, 60, 2, "test", benchmark=LEVEL)
SETS = {
    "own": make(0, 50, 3, "test"),
    "paired": make(1, 40, 1, SPLIT, excluded=EXCLUDED),
    "listed": ImageTable(
        LISTED.paths,
        np.where(np.arange(2) == LEVEL[:, None], LISTED.labels, UNKNOWN),
        LISTED.split,
        LISTED.levels,
        benchmark=LEVEL,
    ),
}


def embed(joined: ImageTable) -> torch.Tensor:
    return torch.randn(len(joined), 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("names", [("own", "paired"), ("paired", "listed", "own")])
def test_each_data_set_has_the_metrics_that_it_has_alone(names: tuple[str, ...]) -> None:
    joined = join_tables({name: SETS[name] for name in names})
    embeddings = embed(joined)
    metrics = evaluate_table(embeddings, joined)
    by_set = {}
    for name in names:
        alone = evaluate_table(embeddings[torch.from_numpy(joined.domain == name)], SETS[name])
        own = {key.removeprefix(f"{name}/"): value for key, value in metrics.items() if key.startswith(f"{name}/")}
        assert {key: own[key] for key in alone if "/" in key} == {k: v for k, v in alone.items() if "/" in k}
        by_set[name] = own
    shared = [key for key in by_set[names[0]] if all(key in own for own in by_set.values())]
    assert "level0/recall@1" in shared
    usual = {key: value for key, value in metrics.items() if key.partition("/")[0] not in names}
    assert [*usual] == shared
    for key, value in usual.items():
        values = [own[key] for own in by_set.values()]
        total = sum(values)
        assert value == pytest.approx(total if "queries" in key else total / len(values), abs=1e-15)


def test_all_levels_of_a_data_set_with_fewer_levels_are_its_last() -> None:
    joined = join_tables({name: SETS[name] for name in ("own", "paired")})
    metrics = evaluate_table(embed(joined), joined)
    assert metrics["paired/level0/map@r"] == metrics["paired/level1/map@r"] == metrics["paired/level2/map@r"]
    assert metrics["own/level0/map@r"] != metrics["own/level2/map@r"]


def test_all_names_are_known_before_an_evaluation() -> None:
    joined = join_tables(SETS)
    config = MetricConfig()
    assert {*Evaluator(joined, config)(embed(joined))} <= {
        *metric_names(joined, config),
        *(f"{prefix}queries_without_positives" for prefix in ("", "level0/", "level1/")),
        *(f"{name}/queries_without_positives" for name in ("own", "paired")),
        *(f"{name}/level{level}/queries_without_positives" for name in SETS for level in range(3)),
    }


def test_queries_meet_no_image_of_another_data_set() -> None:
    joined = join_tables(SETS)
    for part in Evaluator(joined).evaluate(embed(joined), neighbors=5).lists:
        assert (joined.domain[part.neighbors] == joined.domain[part.queries][:, None]).all()


def test_a_data_set_without_a_positive_is_named() -> None:
    alone = make(5, 40, 1, "test")
    lonely = ImageTable(np.array(["x", "y"]), np.array([[0], [1]]), np.array(["test"] * 2), ("class",))
    with pytest.raises(InputError, match=r"^photos: none of the 2 images in the test split has another image"):
        check_queries(join_tables({"others": alone, "photos": lonely}))


def test_several_data_sets_have_no_threshold_of_pairs() -> None:
    joined = join_tables({name: SETS[name] for name in ("own", "paired")})
    assert make_pairs(UnitEmbeddings.normalize(embed(joined)), joined) is None


def test_tables_show_each_data_set() -> None:
    metrics = {"level0/recall@1": 0.5, "photos/level0/recall@1": 0.25, "raw/level0/recall@1": 0.1, "photos/h_ap": 0.3}
    assert split_parts(metrics, "before", "all")["photos"] == {"level0/recall@1": 0.25, "h_ap": 0.3}


def test_two_processes_have_the_metrics_of_one(tmp_path: Path) -> None:
    joined = join_tables(SETS)
    expected = evaluate_table(embed(joined), joined)
    assert on_processes(2, tmp_path, evaluate_table, embed(joined), joined) == [expected, expected]


def test_values_by_class_have_the_mean_of_the_data_sets() -> None:
    tables = {"own": SETS["own"], "paired": SETS["paired"]}
    joined = join_tables(tables)
    embeddings, means = embed(joined), []
    values = average_by_class(Evaluator(joined), embeddings, torch.arange(len(joined)), "level0/map@r")
    for name, table in tables.items():
        part, rows = embeddings[torch.from_numpy(joined.domain == name)], torch.arange(len(table))
        alone = average_by_class(Evaluator(table), part, rows, "level0/map@r")
        means.append(alone.mean())
        assert {*np.round(alone * len(values) / (2 * len(alone)), 9)} <= {*np.round(values, 9)}
    assert len(values) > 10
    assert values.mean() == pytest.approx(np.mean(means), abs=1e-12)
