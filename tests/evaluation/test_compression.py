"""Smaller vectors: prefixes, and metrics that are computed from the nearest neighbors alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dml.data.table import ImageTable
from dml.evaluation.compression import (
    CompressionRow,
    choose_prefixes,
    format_cells,
    make_values,
    measure_compression,
    rank_positives,
    read_values,
    take_prefix,
)
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.metric import MetricConfig
from dml.metrics.binary import map_at_r, recall_at_k
from dml.runtime.errors import InputError

COUNT, DIMS = 40, {"L": 8, "H": 8}


def unit(seed: int) -> Tensor:
    rows = torch.randn(COUNT, 16, generator=torch.Generator().manual_seed(seed))
    return UnitEmbeddings.normalize(rows).rows


def make_table(split: str, **columns: np.ndarray) -> ImageTable:
    labels = np.stack([np.arange(COUNT) // 5, np.arange(COUNT) // 10], axis=1)
    splits = np.array(["query", "gallery"])[np.arange(COUNT) % 2] if split == "query" else np.full(COUNT, split)
    return ImageTable(np.array([f"{row}.png" for row in range(COUNT)]), labels, splits, ("class", "group"), **columns)


def measure(table: ImageTable, test: Tensor) -> dict[tuple[str, str], CompressionRow]:
    evaluator = Evaluator(table, MetricConfig())
    rows = measure_compression(unit(1), UnitEmbeddings(test), DIMS, evaluator, [4, 8], candidates=COUNT)
    return {(row.vectors, row.storage): row for row in rows}


TABLES = {
    "one split": make_table("test"),
    "query and gallery": make_table("query"),
    "copies in the gallery": make_table("query", content=np.arange(COUNT) // 4),
    "lists of levels": make_table("test", benchmark=np.arange(COUNT) % 2),
}


@pytest.mark.parametrize("kind", TABLES)
def test_rows_without_a_loss_have_the_metrics_of_the_evaluation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.evaluation.compression.TIMED_SECONDS", 0.0)
    test = unit(2)
    rows = measure(TABLES[kind], test)
    expected = Evaluator(TABLES[kind], MetricConfig(metrics=("recall", "map@r"), recall_at=(1,)))(test)
    for row in (
        "float32",
        "float16",
        "binary+rescore",
        "pq+rescore",
        "rabitq1+rescore",
        "rabitq4+rescore",
    ):  # all neighbors are rescored
        for name, value in rows["prefix8", row].metrics.items():
            if not name.startswith("mean"):
                assert value == pytest.approx(expected[name], abs=0 if row == "float32" else 1e-12), (row, name)
    assert rows["prefix8", "binary"].metrics != rows["prefix8", "float32"].metrics
    short = torch.cat([test[:, :4], test[:, 8:12]], dim=1)
    norms = torch.cat(
        [test[:, :4].norm(dim=1, keepdim=True).expand(-1, 4), test[:, 8:12].norm(dim=1)[:, None].expand(-1, 4)], 1
    )
    by_prefix = Evaluator(TABLES[kind], MetricConfig(metrics=("recall", "map@r")))(short / norms)
    assert rows["prefix4", "float32"].metrics["level0/map@r"] == pytest.approx(by_prefix["level0/map@r"])
    assert {row for row, _ in rows} == {"prefix4", "prefix8", "pca8", "pca16", "pca8_whitened", "pca16_whitened"}
    assert (rows["prefix4", "pq+rescore"].bytes, rows["prefix4", "pq+rescore"].rescored_bytes) == (2, 32)


@pytest.mark.parametrize("kind", TABLES)
def test_queries_search_the_vectors_of_another_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.evaluation.compression.TIMED_SECONDS", 0.0)
    table, queries = TABLES[kind], unit(2)
    train, gallery = (UnitEmbeddings.normalize(unit(seed) + queries).rows for seed in (4, 5))
    evaluator = Evaluator(table, MetricConfig())
    parts = measure_compression(
        unit(1), UnitEmbeddings(queries), DIMS, evaluator, [8], candidates=COUNT, gallery=(train, gallery)
    )
    rows = {row.storage: row for row in parts if row.vectors == "asymmetric"}
    hits = []
    (first, *_) = evaluator.benchmark_lists
    for place, query in enumerate(first.queries):
        excluded = {query} if first.excluded is None else {*first.searched[first.excluded[place]]}
        others = [item for item in first.searched if item not in excluded]
        nearest = max(others, key=lambda item: float(queries[query] @ gallery[item]))
        if any(table.labels[item, 0] == table.labels[query, 0] for item in others):
            hits.append(table.labels[nearest, 0] == table.labels[query, 0])
    for storage in ("float32", "binary+rescore", "pq+rescore", "rabitq4+rescore"):
        assert rows[storage].metrics["level0/recall@1"] == pytest.approx(np.mean(hits), abs=1e-12)
    assert rows["binary"].metrics != rows["float32"].metrics
    assert [rows[storage].numbers for storage in ("float32", "int8")] == [16, 16]


def test_a_faiss_without_rabitq_leaves_its_rows_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dml.evaluation.compression.TIMED_SECONDS", 0.0)
    names = {storage for _, storage in measure(TABLES["one split"], unit(2))}
    monkeypatch.setattr("dml.evaluation.compression.HAS_RABITQ", False)
    assert {storage for _, storage in measure(TABLES["one split"], unit(2))} == {
        name for name in names if not name.startswith("rabitq")
    }
    assert {f"rabitq{bits}{rest}" for bits in (1, 2, 4, 8) for rest in ("", "+rescore")} < names
    assert capsys.readouterr().out.count("rabitq: this version of FAISS has no such codes") == 1


def test_ranks_behind_the_neighbors_count_as_not_found() -> None:
    rng = np.random.default_rng(0)
    labels, gallery = rng.integers(0, 3, 12), rng.integers(0, 3, 30)
    order = np.stack([rng.permutation(30) for _ in labels])
    counts = np.array([(gallery == label).sum() for label in labels])
    ranks = rank_positives(order[:, : counts.max()], labels, gallery, counts)
    for query, label in enumerate(labels):
        relevant = gallery[order[query]] == label
        hits, total = 0, 0.0
        for place in range(counts[query]):
            hits += relevant[place]
            total += relevant[place] * hits / (place + 1)
        assert map_at_r(ranks)[query] == pytest.approx(total / counts[query])
        assert recall_at_k(ranks, 1)[query] == relevant[0]


def test_a_prefix_is_joined_as_the_heads_are() -> None:
    vectors = unit(3)
    expected = [
        [value / np.sqrt(2) for head in (row[:3], row[8:11]) for value in (head / head.norm()).tolist()]
        for row in vectors
    ]
    torch.testing.assert_close(take_prefix(vectors, DIMS, 3), torch.tensor(expected, dtype=torch.float32))
    joined = torch.cat([vectors[:, :3], vectors[:, 8:11]], dim=1)
    torch.testing.assert_close(take_prefix(vectors, DIMS, 3, "raw"), joined / joined.norm(dim=1, keepdim=True))
    assert take_prefix(vectors, DIMS, 8) is vectors
    assert take_prefix(vectors, {"L": 4, "H": 12}, 6).shape == (COUNT, 10)
    assert choose_prefixes([5, 3], DIMS) == [3, 5, 8]
    with pytest.raises(InputError, match="--prefixes 9: the embedding of a head has 8 dimensions at most"):
        choose_prefixes([9], DIMS)


def test_quantizers_need_training_images() -> None:
    evaluator = Evaluator(make_table("test"), MetricConfig())
    with pytest.raises(InputError, match="1 training images: quantizers"):
        list(measure_compression(unit(1)[:1], UnitEmbeddings(unit(2)), DIMS, evaluator, [8], candidates=5))


def test_values_are_read_as_they_were_made() -> None:
    metrics = {"level0/recall@1": 0.5, "level0/map@r": 0.25}
    rows = [
        CompressionRow("prefix8", "binary+rescore", 8, 1, 32, 1234.5, metrics),
        CompressionRow("pca8", "float32", 8, 32, 0, 99.0, metrics),
    ]
    assert read_values({"split": "test", **make_values(rows)}) == rows
    assert format_cells(rows)[0] == ["prefix8", "8", "binary+rescore", "1 + 32", "50.0", "25.0", "1,234"]
