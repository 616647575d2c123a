"""Re-rankings as an evaluation takes them: their metrics, their rows, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from printed_tables import print_lines

from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.metric import MetricConfig
from dml.evaluation.rerankings import evaluate_rerankings, make_rerankings
from dml.report.console import summary_table
from dml.retrieval.k_reciprocal import KReciprocal
from dml.retrieval.reranking import AlphaQueryExpansion, Comparison, compare_among
from dml.runtime.errors import InputError

CHOSEN: dict[str, Any] = {
    "rerankings": ["alpha_qe", "dba", ["dba", "alpha_qe"], "k_reciprocal"],
    "reranking_steps": {"alpha_qe": {"n": 3, "alpha": 2}, "dba": {"n": 4}, "k_reciprocal": {"k1": 6, "k2": 2}},
}
NAMES = ("alpha_qe", "dba", "dba+alpha_qe", "k_reciprocal")


def make_table(split: Any) -> tuple[ImageTable, torch.Tensor]:
    labels = np.random.default_rng(0).integers(0, 8, 60)
    centers = np.random.default_rng(1).normal(size=(8, 5))
    embeddings = centers[labels] + 1.5 * np.random.default_rng(2).normal(size=(60, 5))
    table = ImageTable(
        paths=np.array([f"{row}.jpg" for row in range(60)]),
        labels=np.stack([labels, labels // 4], axis=1),
        split=np.array(np.broadcast_to(split, 60)),
        levels=("fine", "coarse"),
    )
    return table, torch.from_numpy(embeddings).float()


def average_precision(distances: Any, is_positive: Any) -> float:
    order = [j for j in sorted(range(len(distances)), key=lambda j: (distances[j], j)) if distances[j] < np.inf]
    hits = [place for place, j in enumerate(order) if is_positive[j]]
    return float(np.mean([(i + 1) / (place + 1) for i, place in enumerate(hits)]))


@pytest.mark.parametrize("split", ["test", np.where(np.arange(60) % 3 == 0, "query", "gallery")])
def test_each_reranking_has_its_own_metrics_and_leaves_the_plain_ones_alone(split: Any) -> None:
    table, embeddings = make_table(split)
    evaluator = Evaluator(table, MetricConfig(metrics=("recall", "ap", "h_ap", "nmi"), recall_at=(1,)))
    rerankings = make_rerankings(CHOSEN, has_gallery=False)
    unit = UnitEmbeddings.normalize(embeddings)
    metrics = evaluate_rerankings(evaluator, unit, rerankings)
    names = [name for name in evaluator(embeddings) if not name.endswith("nmi")]
    assert [*metrics] == [f"reranked/{name}/{metric}" for name in NAMES for metric in names]

    labels = table.labels[:, 0]
    queries = np.flatnonzero(table.split != "gallery")
    gallery = np.flatnonzero(table.split != "query")
    comparison = compare_among(unit.rows)
    if len(queries) < 60:
        comparison = Comparison(unit.rows[queries], unit.rows[gallery], np.empty((20, 0), dtype=np.int64), False)
    for name, step in (("alpha_qe", AlphaQueryExpansion(3, 2.0)), ("k_reciprocal", KReciprocal(6, 2))):
        distances = step(comparison).distances(range(len(queries))).numpy()
        precisions = [
            average_precision(row, labels[gallery] == labels[query])
            for row, query in zip(distances, queries, strict=True)
        ]
        assert metrics[f"reranked/{name}/level0/ap"] == pytest.approx(np.mean(precisions))
    recalls = evaluate_rerankings(Evaluator(table, MetricConfig(metrics=["recall"], recall_at=(1,))), unit, rerankings)
    assert recalls == {name: metrics[name] for name in recalls}  # a search for the nearest items isn't enough


def test_each_reranking_is_a_row_below_the_model() -> None:
    metrics = {"level0/recall@1": 0.5, "reranked/alpha_qe/level0/recall@1": 0.6} | {
        "reranked/dba+alpha_qe/level0/recall@1": 0.7
    }
    rows = [line.split() for line in print_lines(summary_table(metrics, ["class"], ["L"]))[-3:]]
    assert rows == [["L", "50.0"], ["+", "alpha-QE", "60.0"], ["+", "DBA,", "alpha-QE", "70.0"]]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"rerankings": ["qe"]}, r"\['qe'\] is not one or several of alpha_qe, dba, k_reciprocal"),
        ({"rerankings": [3]}, "3 is not one or several of"),
        ({"rerankings": [["dba", "dba"]]}, "each once"),
        ({"rerankings": ["dba", ["dba"]]}, "dba is named twice"),
        ({"rerankings": [["k_reciprocal", "dba"]]}, "must be the last step"),
        ({"rerankings": [["dba", "k_reciprocal"]]}, "take it alone"),
        ({"rerankings": ["dba"], "exclude": "nearest"}, r"evaluation\.exclude=null"),
        (
            {"rerankings": ["alpha_qe"], "reranking_steps": {"alpha_qe": {"alpha": float("nan")}}},
            "alpha_qe: n=10 must be at least 1, alpha=nan a finite number, 0 or more",
        ),
    ],
)
def test_rerankings_that_cannot_be_made_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_rerankings(chosen, has_gallery=False)
    assert make_rerankings({}, has_gallery=False) == []
