"""Each of several processes ranks its share of the queries, and all have the metrics of one process."""

from dataclasses import fields
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from gloo import on_processes
from torch import Tensor

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation import MetricConfig, PerQuery, evaluator
from dml.evaluation.evaluator import Evaluation, Evaluator
from dml.retrieval.kmeans_clusters import kmeans

pytestmark = pytest.mark.distributed

COUNT = 200  # images: four blocks of queries, which three processes do not divide
ROWS = torch.arange(COUNT)


def tables() -> dict[str, ImageTable]:
    """Splits of every kind; "two queries" leaves one of three processes without any."""
    fine = np.random.default_rng(0).integers(0, 5, COUNT)
    labels = np.stack([fine, fine // 2], axis=1)
    paths = np.array([f"{row}.jpg" for row in range(COUNT)])

    def table(split: Any, benchmark: Any = EVERY_LEVEL) -> ImageTable:
        columns = np.array(np.broadcast_to(split, COUNT)), np.array(np.broadcast_to(benchmark, COUNT))
        return ImageTable(paths, labels, columns[0], ("fine", "coarse"), benchmark=columns[1])

    numbers = np.arange(COUNT)
    return {
        "one split": table("test"),
        "query and gallery": table(np.where(numbers % 3 == 1, "query", "gallery")),
        "two queries": table(np.where(numbers < 2, "query", "gallery")),
        "a list a level": table("test", numbers % 2),
    }


def embeddings() -> Tensor:
    return torch.nn.functional.normalize(torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0)), dim=1)


class Counted(NamedTuple):
    evaluation: Evaluation
    clusterings: int  # runs of k-means in this process


def evaluations() -> dict[str, Counted]:
    results = {}
    for name, table in tables().items():
        with patch.object(evaluator, "kmeans", Mock(side_effect=kmeans)) as counted:
            evaluate = Evaluator(table, MetricConfig(recall_at=(1, 2), memory=1)).evaluate
            results[name] = Counted(evaluate(embeddings(), ROWS, neighbors=3), counted.call_count)
    return results


@pytest.fixture(scope="module")
def of_one() -> dict[str, Counted]:
    return evaluations()


@pytest.fixture(scope="module")
def of_three(of_one: dict[str, Counted], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    assert of_one  # this process has imported what its copies need
    return on_processes(3, tmp_path_factory.mktemp("evaluator"), evaluations)


@pytest.mark.parametrize("name", tables())
def test_three_processes_evaluate_as_one(of_three: list[Any], of_one: dict[str, Counted], name: str) -> None:
    alone = of_one[name].evaluation
    assert len(of_three) == 3
    for results in of_three:
        shared = results[name].evaluation
        assert shared.metrics == alone.metrics
        for per_query, expected in zip(shared.lists, alone.lists, strict=True):
            assert list(per_query.values) == list(expected.values)
            for field in fields(PerQuery):
                np.testing.assert_equal(getattr(per_query, field.name), getattr(expected, field.name))


@pytest.mark.parametrize("name", tables())
def test_the_first_process_alone_clusters(of_three: list[Any], of_one: dict[str, Counted], name: str) -> None:
    alone = of_one[name]
    assert {"level0/nmi", "level0/ami", "level0/f1"} < alone.evaluation.metrics.keys()
    assert [results[name].clusterings for results in of_three] == [2, 0, 0]  # at each of two levels
    assert alone.clusterings == 2
