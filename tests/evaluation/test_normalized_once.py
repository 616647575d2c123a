"""A test of a run checks and normalizes each head's embeddings once, and takes the labels once."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Here

from dml.data.table import ImageTable
from dml.evaluation import Evaluator, evaluator, geometry
from dml.evaluation.geometry import UnitEmbeddings


class Calls:
    """Counts the calls of functions, by the name of the function and its first argument's content."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, content: Callable[[Any], Any]) -> None:
        function = getattr(owner, name)

        def counting(first: Any, *others: Any, **named: Any) -> Any:
            self.counts[name, hashlib.sha256(np.asarray(content(first)).tobytes()).hexdigest()] += 1
            return function(first, *others, **named)

        patch.setattr(owner, name, counting)

    def of(self, function: str) -> list[int]:
        """How often the function was called with each content."""
        return [number for (name, _), number in self.counts.items() if name == function]


def test_a_test_normalizes_and_takes_everything_once(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = tmp_path / "run", "evaluation.other_labels.again"
    small = [argument for argument in SMALL if not argument.startswith("evaluation.report")]
    small += [
        "trainer.max_steps=2",
        "trainer.val_check_interval=2",
        "evaluation.raw=false",
        f"dataset.root={small_emoji}",
    ]
    test = ["evaluation.report={neighbors:5,map:true,seed:0}", "evaluation.fixed_neighbors=5"]
    test += [
        f"dataset.root={small_emoji}",
        f"+dataset@{other}=emoji",
        f"{other}.root={small_emoji}",
        f"{other}.counts=null",
    ]
    here("train", *small, *test, f"hydra.run.dir={run}")

    calls = Calls()
    calls.count(monkeypatch, geometry, "unit_rows", lambda embeddings: embeddings)
    calls.count(monkeypatch, evaluator, "benchmark_lists", lambda table: table.labels)
    calls.count(monkeypatch, ImageTable, "take", lambda table: table.labels)
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path / 'again'}")
    assert (tmp_path / "again" / "report.html").exists()
    assert calls.of("unit_rows") == [
        1,
        1,
        1,
        1,
        1,
    ]  # the three heads, their concatenation, and that of the validation split
    assert calls.of("benchmark_lists") == [2]  # once for each of two equal sets of labels
    assert len(calls.of("take")) == 1  # rows are taken from the whole data set, never again from the tested ones


def test_rows_are_taken_only_if_some_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(12)[:, None] // 3
    table = ImageTable(np.array([f"{row}.jpg" for row in range(12)]), labels, np.full(12, "val"), ("class",))
    whole = Evaluator(table)
    embeddings, rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(2, 12)
    calls = Calls()
    calls.count(monkeypatch, ImageTable, "take", lambda table: table.labels)
    assert whole(embeddings, torch.arange(12)) == whole(embeddings)
    assert not calls.of("take")
    assert whole(embeddings[2:], rows) == Evaluator(table.take(rows.numpy()))(embeddings[2:])
    reversed_rows = torch.arange(12).flip(0)
    assert whole(embeddings.flip(0), reversed_rows)["level0/ap"] == pytest.approx(whole(embeddings)["level0/ap"])


def test_unit_embeddings_are_normalized_once() -> None:
    unit = UnitEmbeddings.normalize(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.equal(unit.rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert UnitEmbeddings.normalize(unit) is unit
    assert torch.equal(unit.take(np.array([1, 0])).rows, unit.rows.flip(0))
