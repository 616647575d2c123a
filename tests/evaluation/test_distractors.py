"""Distractors: rankings with counted items are those of a gallery that holds them, in any blocks and processes."""

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from operator import eq, mul
from pathlib import Path
from typing import Any

import metric_oracles as oracles
import numpy as np
import pyarrow as pa
import pytest
import torch
from gloo import on_processes

import dml
from dml.data.table import ImageTable
from dml.evaluation import DistractorFolder, Evaluator, MetricConfig, distractor_folder, distractors, rank_queries
from dml.evaluation.monitor import make_validation_config
from dml.evaluation.names import describe_metric, full_metric_name
from dml.inference.embedding_files import make_table, write_embeddings
from dml.metrics.graded import ndcg
from dml.runtime.errors import InputError

METRICS = ("recall", "ap", "map@1", "map@5", "map@50", "map@r", "r_precision", "h_ap", "ndcg", "asi", "sum_wap")
SETTINGS: dict[str, Any] = {"metrics": METRICS, "recall_at": (1, 5, 50), "clustering": False}


def draw_signs(count: int, seed: int) -> Any:
    """Vectors of entries 1 and -1 in 16 dimensions, few of them equal, whose 17 different cosines float32 has."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], (count, 16))


def sort_levels(query: Any, label: Any, gallery: Any, gallery_labels: Any, far: Any) -> list[int]:
    """The number of levels that each item of the whole list shares with a query, nearest first, by a stable sort."""
    products = [sum(map(mul, query, item)) for item in [*gallery.tolist(), *far.tolist()]]
    levels = [sum(map(eq, label, other)) for other in gallery_labels.tolist()] + [0] * len(far)
    return [levels[item] for item in sorted(range(len(products)), key=lambda item: -products[item])]


@pytest.mark.parametrize("few", [1, 1000])
def test_metrics_with_ties_are_those_of_a_sorted_list(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distractors, "FEW", few)
    classes = np.random.default_rng(3).integers(0, 8, 400)
    labels = np.stack([classes, classes // 4], axis=1)
    queries, gallery, far = draw_signs(100, 0), draw_signs(300, 1), draw_signs(900, 2)
    blocks = (far[start : start + 70] for start in range(0, 900, 70))
    found = dml.evaluate(queries, labels[:100], gallery, labels[100:], distractors=blocks, **SETTINGS)
    values: dict[str, list[float]] = defaultdict(list)
    for query, label in zip(queries.tolist(), labels[:100].tolist(), strict=True):
        levels = sort_levels(query, label, gallery, labels[100:], far)
        fine = [level == 2 for level in levels]
        values["level0/ap"].append(oracles.average_precision(fine))
        values["level0/map@r"].append(oracles.map_at_r(fine))
        values["level0/r_precision"].append(oracles.r_precision(fine))
        for k in (1, 5, 50):
            values[f"level0/recall@{k}"].append(oracles.recall(fine, k))
            values[f"level0/map@{k}"].append(oracles.map_at_k(fine, k))
        values["h_ap"].append(oracles.h_ap(oracles.power_relevance(levels, 2, 1.0)))
        values["ndcg"].append(oracles.ndcg(levels))
        values["asi"].append(oracles.asi(levels))
    for name, expected in values.items():
        assert found[name] == pytest.approx(np.mean(expected), abs=1e-12), name


def evaluate_whole(queries: Any, labels: Any, gallery: Any, gallery_labels: Any, far: Any) -> dict[str, float]:
    """The metrics of a gallery that holds the distractors, each of a class of its own."""
    own = -1 - np.arange(len(far))[:, None].repeat(labels.shape[1], axis=1)
    excluded = np.arange(len(queries))[:, None] if gallery is None else None
    items, item_labels = (queries, labels) if gallery is None else (gallery, gallery_labels)
    whole = np.concatenate([items, far]), np.concatenate([item_labels, own])
    return rank_queries(queries, labels, *whole, excluded=excluded, **SETTINGS).compute_means()


@pytest.mark.parametrize("seed", range(12))
def test_counted_distractors_rank_as_if_the_gallery_held_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also copies of queries, of gallery items and of each other, for trees and crossed levels, in tiny tiles."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        monkeypatch.setattr(distractors, "TILE_ROWS", 16)
        monkeypatch.setattr(distractors, "GROUP", 7)
        monkeypatch.setattr(distractors, "FEW", 3)
    size, levels, dimension = 150, 1 + seed % 3, (4, 16, 64)[seed % 3]
    classes = rng.integers(0, 9, (2 * size, levels))
    labels = classes if seed % 4 == 0 else np.stack([classes[:, 0] // 3**level for level in range(levels)], axis=1)
    # of signs, whose similarities no order of the sums rounds: those that are equal are equal on every processor
    queries, gallery = rng.choice([-1.0, 1.0], (2, size, dimension))
    gallery[:20] = gallery[30:50]
    far = rng.choice([-1.0, 1.0], (300, dimension))
    far[:60] = np.concatenate([queries[:20], gallery[10:30], far[100:120]])
    own = seed % 3 == 0
    searched, searched_labels = (None, None) if own else (gallery, labels[size:])
    expected = evaluate_whole(queries, labels[:size], searched, searched_labels, far)
    blocks = (far[start:stop] for start, stop in [(0, 1), (1, 1), (1, 130), (130, 300)])
    found = dml.evaluate(queries, labels[:size], searched, searched_labels, distractors=blocks, **SETTINGS)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("dimension", "group"), [(3, 256), (96, 256), (515, 256), (640, 1)])
def test_equal_distractors_are_all_nearer_or_all_farther(
    dimension: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distractors, "GROUP", group)
    rng = np.random.default_rng(dimension)
    far = rng.standard_normal((1, dimension))
    queries = far + rng.standard_normal((90, dimension))
    gallery = far + 1e-7 * rng.standard_normal((90, dimension))  # at the distractor's distance, within some rounding
    labels = np.arange(90)
    many = [far.repeat(number, axis=0) for number in (20_000, 5)]
    many.append(np.concatenate([-far.repeat(13_106, axis=0), far]))  # in the last column of a tile of a 640-d block
    alone, repeated = (rank_queries_among(queries, labels, gallery, blocks) for blocks in ([far], many))
    assert 0 < alone.sum() < 90
    np.testing.assert_array_equal(repeated, 20_006 * alone)


def rank_queries_among(queries: Any, labels: Any, gallery: Any, blocks: Any) -> Any:
    """The number of distractors before the one positive of each query."""
    config = {"metrics": ["ap"], "clustering": False}
    ranks = []
    for far in (None, blocks):
        evaluator = Evaluator(
            ImageTable(
                np.array([f"{row}.jpg" for row in range(2 * len(labels))]),
                np.concatenate([labels, labels])[:, None],
                np.repeat(["query", "gallery"], len(labels)),
                ("class",),
            ),
            MetricConfig(**config),
        )
        result = evaluator.evaluate(np.concatenate([queries, gallery]), distractors=far)
        ranks.append(np.rint(1 / result.lists[0].values["level0/ap"]).astype(int))
    return ranks[1] - ranks[0]


def test_ranks_of_a_hundred_millions_need_no_table_of_discounts() -> None:
    ranks = [torch.tensor([[3.0, 1e8]], dtype=torch.float64), torch.tensor([[7.0]], dtype=torch.float64)]
    gained = 1 / np.log2([4, 1e8 + 1]) @ [1, 1] + 3 / np.log2(8)
    assert float(ndcg(ranks)) == pytest.approx(gained / (3 + 1 / np.log2(3) + 1 / 2), abs=1e-12)


def test_map_at_k_has_its_k_in_its_name() -> None:
    assert full_metric_name("map@1000") == "level0/map@1000"
    assert describe_metric("distractors/level0/map@1000").label == "mAP@1000"
    config = MetricConfig(metrics=["map@1000", "recall", "map@5"])
    assert [*config.ranking_names(1)][-2:] == ["level0/map@1000", "level0/map@5"]
    validated = make_validation_config(config, "level0/map@5")
    assert ([metric.name for metric in validated.selected], validated.recall_at) == (["recall", "map@5"], (1, 2, 4, 8))
    with pytest.raises(InputError, match=r"metrics = 'map@0': .*map@K"):
        MetricConfig(metrics=["map@0"])


def test_a_mistake_is_one_line() -> None:
    queries, labels = draw_signs(20, 0), np.arange(20) % 3
    far = draw_signs(30, 1)
    far[17, 2] = np.nan
    for blocks, message in [
        ([far[:, :3]], r"distractors: embeddings of shape \(30, 3\), expected \(n, 16\)"),
        (far, r"distractors: embeddings of shape \(16,\), expected \(n, 16\)"),
        ([far[:10], far[10:]], "distractors, row 17 from 0 on: .* hold NaN"),
    ]:
        with pytest.raises(InputError, match=message):
            dml.evaluate(queries, labels, distractors=blocks, **SETTINGS)
    with pytest.raises(InputError, match="distractors: not in a re-ranking, nor where queries exclude"):
        dml.evaluate(queries, labels, distractors=[far[:3]], exclude_nearest=True, **SETTINGS)
    table = ImageTable(
        np.array([f"{row}.jpg" for row in range(20)]),
        np.stack([labels, labels], axis=1),
        np.full(20, "test"),
        ("fine", "coarse"),
        benchmark=np.arange(20) % 2,
    )
    with pytest.raises(InputError, match="give a list of blocks, not an iterator"):
        Evaluator(table, MetricConfig(**SETTINGS)).evaluate(queries, distractors=iter([far[:3]]))


def write_shards(folder: Path, far: Any) -> None:
    """Five files of all kinds, of different lengths."""
    folder.mkdir(exist_ok=True)
    parts = np.split(far.astype(np.float32), [100, 110, 300, 420])
    for number, part in enumerate(parts[:4]):
        np.save(folder / f"{number}.npy", part.astype(np.float16) if number == 2 else part)
    facts = {"fingerprint": "abc"}
    table = make_table([f"{row}.jpg" for row in range(len(parts[4]))], [""] * len(parts[4]), parts[4], facts)
    write_embeddings(folder / "4.parquet", [table], facts, len(parts[4]))
    (folder / "._0.npy").write_bytes(b"of another system")
    (folder / "notes.txt").write_text("no embeddings")


def draw_problem() -> tuple[Any, Any, Any]:
    """Queries and labels, and distractors that float16 has."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((80, 4)), np.arange(80) % 9, rng.standard_normal((500, 4)).astype(np.float16)


def test_a_folder_has_the_metrics_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distractor_folder, "BLOCK_BYTES", 16 * 37)
    queries, labels, far = draw_problem()
    write_shards(tmp_path / "far", far)
    folder = DistractorFolder(tmp_path / "far")
    assert len(folder) == 500
    expected = dml.evaluate(queries, labels, distractors=[far], **SETTINGS)
    assert dml.evaluate(queries, labels, distractors=folder, **SETTINGS) == expected
    assert not folder.check("abc")  # the .npy files don't say
    assert DistractorFolder(tmp_path / "far" / "4.parquet").check("abc")
    with pytest.raises(InputError, match=r"4\.parquet: of the model abc, expected the tested one, b"):
        folder.check("b")


def test_a_file_that_holds_no_embeddings_is_named(tmp_path: Path) -> None:
    def refuse(match: str) -> None:
        with pytest.raises(InputError, match=match):
            DistractorFolder(tmp_path / "far")

    (tmp_path / "far").mkdir()
    refuse("no .npy or .parquet file")
    file = tmp_path / "far" / "0.npy"
    ones = partial(np.ones, dtype=np.float32)
    for array in (ones(3), ones((3, 0)), np.ones((3, 2), np.int64), ones((3, 2), order="F")):
        np.save(file, array)
        refuse(r"0\.npy: no embeddings can be read: .*expected float32 or float16 \(N, D\)")
    file.write_bytes(b"none")
    refuse(r"0\.npy: no embeddings can be read")
    file.unlink()
    pa.parquet.write_table(pa.table({"vector": [[1.0, 2.0]]}), tmp_path / "far" / "1.parquet")
    refuse(r"1\.parquet: no embeddings can be read: .*of fixed size")
    queries, labels, far = draw_problem()
    for rows, message in (([far[0], None], "1 of 2; the others are null"), ([[1.0, None, 0.0, 0.0]], "1 nulls")):
        table = pa.table({"vector": pa.array(rows, pa.list_(pa.float32(), 4))})
        pa.parquet.write_table(table, tmp_path / "far" / "1.parquet")
        with pytest.raises(InputError, match=rf"1\.parquet: no embeddings can be read: .*{message}"):
            dml.evaluate(queries, labels, distractors=DistractorFolder(tmp_path / "far"), **SETTINGS)
    far[250, 1] = np.inf
    (tmp_path / "far" / "1.parquet").unlink()
    write_shards(tmp_path / "far", far)
    with pytest.raises(InputError, match=r"2\.npy, row 140 from 0 on"):
        dml.evaluate(queries, labels, distractors=DistractorFolder(tmp_path / "far"), **SETTINGS)


def count_kept(folder: Path) -> int:
    return len([*folder.glob("*.npz")])


def evaluate_until(folder: Path, blocks: int) -> None:
    """Evaluate until so many blocks are read, and be killed then."""
    queries, labels, _ = draw_problem()
    distractors = DistractorFolder(folder / "far", folder / "kept")
    numbers = itertools.count(1)

    def read_and_be_killed(read: Any) -> Iterator[Any]:
        for block in read():
            yield block
            if next(numbers) == blocks:
                os.kill(os.getpid(), signal.SIGKILL)

    distractors._shards = [
        shard._replace(read=partial(read_and_be_killed, shard.read)) for shard in distractors._shards
    ]
    dml.evaluate(queries, labels, distractors=distractors, **SETTINGS)


def test_an_evaluation_that_is_killed_again_and_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed 20 times, in each block of the five files, it has the metrics of one that wasn't."""
    monkeypatch.setattr(distractor_folder, "BLOCK_BYTES", 16 * 37)
    queries, labels, far = draw_problem()
    write_shards(tmp_path / "far", far)
    kept = []
    for blocks in (1, 2, 3, 4, 1, 2, *range(1, 8), 2, 3, 4, 5, 1, 2, 3):
        process = get_context("fork").Process(target=evaluate_until, args=(tmp_path, blocks))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kept.append(count_kept(tmp_path / "kept"))
    assert len(kept) == 20
    assert set(kept) == {0, 1, 2, 3, 4}
    folder = DistractorFolder(tmp_path / "far", tmp_path / "kept")
    whole = dml.evaluate(queries, labels, distractors=[far], **SETTINGS)
    assert dml.evaluate(queries, labels, distractors=folder, **SETTINGS) == whole


def test_kept_counts_are_of_the_same_files_and_positives(tmp_path: Path) -> None:
    queries, labels, far = draw_problem()
    write_shards(tmp_path / "far", far)

    def evaluate(seed: int = 0) -> dict[str, float]:
        folder = DistractorFolder(tmp_path / "far", tmp_path / "kept")
        return dml.evaluate(queries, (labels + seed) // (1 + seed), distractors=folder, **SETTINGS)

    before = evaluate()
    assert count_kept(tmp_path / "kept") == 5
    assert evaluate() == before
    assert count_kept(tmp_path / "kept") == 5
    for path in (tmp_path / "kept").glob("*.npz"):  # the counts of a damaged file are counted again
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert evaluate() == before
    evaluate(seed=1)
    assert count_kept(tmp_path / "kept") == 10
    np.save(tmp_path / "far" / "0.npy", queries[:50].astype(np.float32))
    assert evaluate() != before
    assert count_kept(tmp_path / "kept") == 11


def evaluate_folder(folder: Path) -> dict[str, float]:
    queries, labels, _ = draw_problem()
    table = ImageTable(np.array([f"{row}.jpg" for row in range(80)]), labels[:, None], np.full(80, "test"), ("class",))
    evaluator = Evaluator(table, MetricConfig(memory=1, **SETTINGS))
    return evaluator.evaluate(queries, distractors=DistractorFolder(folder)).metrics


@pytest.mark.distributed
def test_processes_share_the_files(tmp_path: Path) -> None:
    write_shards(tmp_path / "far", draw_problem()[2])
    alone = evaluate_folder(tmp_path / "far")
    assert on_processes(3, tmp_path, evaluate_folder, tmp_path / "far") == [alone] * 3
