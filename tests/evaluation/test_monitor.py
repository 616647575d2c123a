"""What a validation computes beside the metric that chooses a checkpoint, which no clock decides."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from image_tables import make_table

from dml.data.table import ImageTable
from dml.evaluation import Evaluator, Metric, MetricConfig
from dml.evaluation.monitor import describe_clustering, make_further_config, make_validation_config
from dml.runtime.errors import InputError

FIRST_RANK = Metric("first_rank", "first rank", "level", lambda ranks: ranks[:, 0])  # type: ignore[arg-type]


def table(images: int, *classes: int) -> ImageTable:
    return make_table(np.stack([np.arange(images) % number for number in classes], axis=1), "val")


def further_names(names: Any, test: MetricConfig, *, levels: int = 2) -> list[str]:
    further = make_further_config(names, test, ["level0/map@r"], table(24, *[6, 3][:levels]))
    return [metric.name for metric in further.selected]


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ({}, {}, ["h_ap", "nmi"]),
        ({}, {"levels": 1}, ["nmi"]),
        ({"clustering": False}, {}, ["h_ap"]),
        ({"metrics": ["recall", "ami"]}, {}, []),
        ({"metrics": ["nmi", FIRST_RANK]}, {}, ["nmi"]),
    ],
)
def test_auto_is_what_a_test_computes_and_the_labels_allow(settings: Any, arguments: Any, expected: list[str]) -> None:
    assert further_names("auto", MetricConfig(**settings), **arguments) == expected


def test_map_at_r_is_computed_whatever_chooses_the_checkpoint() -> None:
    further = make_further_config("auto", MetricConfig(), ["level0/recall@1"], table(24, 6))
    assert [metric.name for metric in further.selected] == ["map@r", "nmi"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["nmi", "asi", "nmi"], ["asi", "nmi"]),
        (["recall", "map@r"], []),
        (["first_rank", "f1"], ["f1", "first_rank"]),
    ],
)
def test_a_list_says_which(names: list[str], expected: list[str]) -> None:
    test = MetricConfig(metrics=["recall", FIRST_RANK], clustering=False)
    assert further_names(names, test, levels=1) == expected


@pytest.mark.parametrize("name", ["recal", 3])
def test_what_no_validation_can_compute_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match=rf"^evaluation\.validation_metrics = {name!r}"):
        further_names(["nmi", name], MetricConfig())


def test_the_metrics_are_those_of_a_test_of_the_same_rows() -> None:
    part, test = table(24, 6, 3), MetricConfig()
    embeddings = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    validation = make_validation_config(test, "level0/map@r")
    further = make_further_config("auto", test, ["level0/map@r"], part)
    found = Evaluator(part, validation)(embeddings) | Evaluator(part, further)(embeddings)
    assert {"level0/recall@8", "level1/map@r", "h_ap", "level0/nmi", "level1/nmi"} < found.keys()
    expected = Evaluator(part, test)(embeddings)
    assert found == {name: pytest.approx(expected[name], abs=1e-12) for name in found}


def test_the_line_counts_queries_alone_and_twice_the_vector_takes_twice_the_time() -> None:
    images = table(30_000, 3_000, 30)
    images = replace(images, split=np.where(np.arange(30_000) < 24_000, "query", "gallery"))
    validation = Evaluator(images, MetricConfig(metrics=["recall", "nmi", "f1"]))
    lines = [describe_clustering(validation, dimension) for dimension in (1_000, 2_000)]
    assert all("for nmi, f1 of 24,000 images in 3,030 clusters" in line for line in lines)
    assert all("'evaluation.validation_metrics=[recall]'" in line for line in lines)
    first, second = (int(line.split()[1].replace(",", "")) for line in lines)
    assert abs(second - 2 * first) <= 1
