"""Embeddings that rank a table's gallery in a known order, to test protocols."""

import numpy as np

from dml.data.table import ImageTable
from dml.evaluation.evaluator import evaluate_table


def rank_in_order(table: ImageTable, order: list[str], **settings: object) -> dict[str, float]:
    """The metrics if every query finds the files whose names ``order`` holds in this order, and then all others."""
    names = [path.rpartition("/")[2] for path in table.paths.tolist()]
    ranks = [
        0 if split == "query" else order.index(name) + 1 if name in order else len(order) + 1 + row
        for row, (name, split) in enumerate(zip(names, table.split.tolist(), strict=True))
    ]
    angles = np.array(ranks) / (len(names) + len(order) + 2)
    return evaluate_table(np.stack([np.cos(angles), np.sin(angles)], axis=1), table, clustering=False, **settings)
