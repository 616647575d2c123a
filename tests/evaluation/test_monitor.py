"""What a validation computes beside the metric that chooses a checkpoint, which no clock decides."""

from typing import Any

import numpy as np
import pytest
import torch

from dml.data.table import ImageTable
from dml.evaluation import Evaluator, Metric, MetricConfig
from dml.evaluation.monitor import has_time_for_clusters, make_further_config, make_validation_config
from dml.runtime.errors import InputError

FIRST_RANK = Metric("first_rank", "first rank", "level", lambda ranks: ranks[:, 0])  # type: ignore[arg-type]


def table(images: int, *classes: int) -> ImageTable:
    labels = np.stack([np.arange(images) % number for number in classes], axis=1)
    paths = np.array([f"{image}.jpg" for image in range(images)])
    return ImageTable(paths, labels, np.full(images, "val"), tuple(f"level {i}" for i in range(len(classes))))


def further_names(names: Any, test: MetricConfig, *, levels: int = 2, with_clusters: bool = True) -> list[str]:
    part = table(24, *[6, 3][:levels])
    further = make_further_config(names, test, ["level0/map@r"], part, with_clusters=with_clusters)
    return [metric.name for metric in further.selected]


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ({}, {}, ["h_ap", "nmi"]),
        ({}, {"levels": 1}, ["nmi"]),
        ({}, {"with_clusters": False}, ["h_ap"]),
        ({"clustering": False}, {}, ["h_ap"]),
        ({"metrics": ["recall", "ami"]}, {}, []),
        ({"metrics": ["nmi", FIRST_RANK]}, {}, ["nmi"]),
    ],
)
def test_auto_is_what_a_test_computes_and_the_labels_and_the_time_allow(
    settings: Any, arguments: Any, expected: list[str]
) -> None:
    assert further_names("auto", MetricConfig(**settings), **arguments) == expected


def test_map_at_r_is_computed_whatever_chooses_the_checkpoint() -> None:
    further = make_further_config("auto", MetricConfig(), ["level0/recall@1"], table(24, 6), with_clusters=False)
    assert [metric.name for metric in further.selected] == ["map@r"]


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
    assert further_names(names, test, levels=1, with_clusters=False) == expected


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["nmi", "recal"], r"^evaluation\.validation_metrics = 'recal': expected some of recall, ap, map@r"),
        ([3], r"^evaluation\.validation_metrics: 3 is neither a name nor a metric"),
    ],
)
def test_what_no_validation_can_compute_is_refused(names: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        further_names(names, MetricConfig())


def test_the_metrics_are_those_of_a_test_of_the_same_rows() -> None:
    part, test = table(24, 6, 3), MetricConfig()
    embeddings = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    validation = make_validation_config(test, "level0/map@r")
    further = make_further_config("auto", test, ["level0/map@r"], part)
    found = Evaluator(part, validation)(embeddings) | Evaluator(part, further)(embeddings)
    assert {"level0/recall@8", "level1/map@r", "h_ap", "level0/nmi", "level1/nmi"} < found.keys()
    expected = Evaluator(part, test)(embeddings)
    assert found == {name: pytest.approx(expected[name], abs=1e-12) for name in found}


EMOJI = {"table": table(614, 115, 60, 8), "dimension": 320, "batches": 100, "images": 59.0, "parameters": 3_444_736}
HEADS_ALONE = EMOJI | {"parameters": 300_000}
PRODUCTS = {"table": table(11_900, 2_264), "dimension": 512, "batches": 425, "images": 112.0, "parameters": 25_000_000}
"""An epoch of four fifths of the training classes of Stanford Online Products, by ResNet-50."""


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (EMOJI, True),
        (HEADS_ALONE, True),
        (EMOJI | {"batches": 1}, False),
        (PRODUCTS, True),
        (PRODUCTS | {"parameters": 1_000_000}, False),  # its head alone
        (PRODUCTS | {"table": table(60_502, 11_316)}, False),  # validated on the test classes
    ],
)
def test_k_means_has_to_take_less_than_a_tenth_of_the_interval(counts: Any, expected: bool) -> None:
    assert has_time_for_clusters(**counts) is expected
