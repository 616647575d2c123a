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
from dml.evaluation import protocol
from dml.evaluation.judge import Judge
from dml.evaluation.queries import PerQuery
from dml.evaluation.scores import METRICS
from dml.retrieval.clustering import kmeans

COUNT = 23  # of images, which three processes don't divide
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


class Judged(NamedTuple):
    ranked: list[PerQuery]
    metrics: dict[str, float]
    clusterings: int  # runs of k-means in this process


def judged() -> dict[str, Judged]:
    found = {}
    for name, table in tables().items():
        judge = Judge(table, metrics=METRICS, recall_at=(1, 2))
        with patch.object(protocol, "kmeans", Mock(side_effect=kmeans)) as counted:
            metrics = judge(embeddings(), ROWS)
        found[name] = Judged(judge.rank(embeddings(), ROWS, neighbors=3), metrics, counted.call_count)
    return found


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_processes(3, tmp_path_factory.mktemp("judge"), judged)


@pytest.mark.parametrize("name", tables())
def test_three_processes_judge_as_one(of_three: list[Any], name: str) -> None:
    alone = judged()[name]
    assert len(of_three) == 3
    for found in of_three:
        assert found[name].metrics == alone.metrics
        for own, expected in zip(found[name].ranked, alone.ranked, strict=True):
            assert list(own.values) == list(expected.values)
            for field in fields(PerQuery):
                np.testing.assert_equal(getattr(own, field.name), getattr(expected, field.name))


@pytest.mark.parametrize("name", tables())
def test_the_first_process_alone_clusters(of_three: list[Any], name: str) -> None:
    alone = judged()[name]
    assert {"level0/nmi", "level0/ami", "level0/f1"} < alone.metrics.keys()
    assert [found[name].clusterings for found in of_three] == [2, 0, 0]  # at each of two levels
    assert alone.clusterings == 2
