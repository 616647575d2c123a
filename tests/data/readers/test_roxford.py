import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranked_tables import rank_in_order
from trees.roxford5k import GALLERY, LIST, TREE, TRUTH, change

from dml.data.readers.roxford import read
from dml.data.table import ImageTable
from dml.evaluation.evaluator import evaluate_table
from dml.runtime.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    TREE.build(tmp_path)
    return tmp_path


def of_query(table: ImageTable, name: str) -> ImageTable:
    is_kept = [split == "gallery" or f"/{name}." in path for path, split in zip(table.paths, table.split, strict=True)]
    return table.take(np.flatnonzero(is_kept))


def test_the_worked_example(root: Path) -> None:
    """Easy, Medium and Hard with junk removed; image e1, which has two rows, is met once."""
    order = [f"{name}.jpg" for name in GALLERY]
    found = rank_in_order(of_query(read(root), "all_souls_1"), order, metrics=["ap", "trapezoid_ap"])
    expected = {
        "level0/trapezoid_ap": 0.6777777777777777,
        "level1/trapezoid_ap": 0.7879761904761906,
        "level2/trapezoid_ap": 0.7083333333333333,
        "level0/ap": 0.7222222222222222,
        "level1/ap": 0.8083333333333333,
        "level2/ap": 0.75,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def average_precision(ranked: list[int], positives: set[int], junk: set[int]) -> float:
    """As in revisitop: the precisions at and before each positive, in a ranking without junk."""
    kept = [item for item in ranked if item not in junk]
    total, hits = 0.0, 0
    for place, item in enumerate(kept):
        if item in positives:
            total += (hits / place if place else 1.0) + (hits + 1) / (place + 1)
            hits += 1
    return total / (2 * len(positives))


@pytest.mark.parametrize("seed", range(8))
def test_lists_of_chance(seed: int, tmp_path: Path) -> None:
    """Positives that overlap in any way, against the protocol of each single query."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["easy", "hard", "junk", ""], size=(6, 25), p=[0.25, 0.2, 0.2, 0.35])
    kinds[:, :2], kinds[3] = ("easy", "hard"), kinds[2]
    gnd = [{name: np.flatnonzero(row == name).tolist() for name in ("easy", "hard", "junk")} for row in kinds]
    truth = {"imlist": [f"i{i}" for i in range(25)], "qimlist": [f"q{i}" for i in range(6)], "gnd": gnd}
    (tmp_path / "jpg").mkdir()
    (tmp_path / LIST).write_bytes(pickle.dumps(truth))
    table = read(tmp_path)
    vectors = {name: rng.normal(size=4) for name in truth["imlist"] + truth["qimlist"]}
    embeddings = np.stack([vectors[Path(path).stem] for path in table.paths.tolist()])
    found = evaluate_table(embeddings, table, metrics=["trapezoid_ap"])
    gallery = np.stack([vectors[name] / np.linalg.norm(vectors[name]) for name in truth["imlist"]])
    for level, (ok, junk) in enumerate([("easy", "junk hard"), ("easy hard", "junk"), ("hard", "junk easy")]):
        values = []
        for name, lists in zip(truth["qimlist"], gnd, strict=True):
            ranked = np.argsort(-gallery @ vectors[name]).tolist()
            positives, ignored = ({i for part in names.split() for i in lists[part]} for names in (ok, junk))
            values.append(average_precision(ranked, positives, ignored))
        assert found[f"level{level}/trapezoid_ap"] == pytest.approx(np.mean(values), abs=1e-9)


def test_an_image_is_in_one_of_the_lists(root: Path) -> None:
    change(lambda truth: truth["gnd"][1]["junk"].append(6))(root)
    with pytest.raises(InputError, match=r"gnd of all_souls_2: h1 is in two of the lists easy, hard and junk$"):
        read(root)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_all_protocols(root: Path, protocol: int) -> None:
    expected = read(root)
    (root / LIST).write_bytes(pickle.dumps(TRUTH, protocol))
    assert read(root).excluded.tolist() == expected.excluded.tolist()


class Runs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_would_run_code_is_refused(root: Path) -> None:
    (root / LIST).write_bytes(pickle.dumps(TRUTH | {"more": Runs(root / "made")}))
    with pytest.raises(
        InputError, match=r"gnd_roxford5k\.pkl: not a pickle of plain values \(it would run posix\.mkdir\)$"
    ):
        read(root)
    assert not (root / "made").exists()


@pytest.mark.parametrize("content", [b"\x80\x04]r\xff\xff\xff\x7f.", b"\x80\x04", b"]" * 100_000, b"\x80\x04N."])
def test_a_damaged_pickle(root: Path, content: bytes) -> None:
    """The first would take 16 GB of memory for the place 2^31."""
    (root / LIST).write_bytes(content)
    with pytest.raises(InputError, match=r"gnd_roxford5k\.pkl: (not a pickle of plain values|no list imlist in it)"):
        read(root)
