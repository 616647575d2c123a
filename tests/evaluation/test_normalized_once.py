"""Embeddings are checked and normalized once, and rows of a table are taken only where some are missing."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from dml.data.table import ImageTable
from dml.evaluation import Evaluator
from dml.evaluation.geometry import UnitEmbeddings


def test_rows_are_taken_only_if_some_are_missing() -> None:
    labels = np.arange(12)[:, None] // 3
    table = ImageTable(np.array([f"{row}.jpg" for row in range(12)]), labels, np.full(12, "val"), ("class",))
    whole = Evaluator(table)
    embeddings, rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(2, 12)
    with patch.object(ImageTable, "take", side_effect=AssertionError):
        assert whole(embeddings, torch.arange(12)) == whole(embeddings)
    assert whole(embeddings[2:], rows) == Evaluator(table.take(rows.numpy()))(embeddings[2:])
    reversed_rows = torch.arange(12).flip(0)
    assert whole(embeddings.flip(0), reversed_rows)["level0/ap"] == pytest.approx(whole(embeddings)["level0/ap"])


def test_unit_embeddings_are_normalized_once() -> None:
    unit = UnitEmbeddings.normalize(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.equal(unit.rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert UnitEmbeddings.normalize(unit) is unit
