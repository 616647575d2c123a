"""The ensemble of the models of all folds, tested on the test classes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dml.inference.loading import load
from dml.inference.split_embeddings import build_evaluator, embed_split, read_data_set
from dml.report.statistics import PER_QUERY, ClassSums, shorten, sum_by_class
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

Vectors = npt.NDArray[np.float32]


def join_embeddings(members: Sequence[Vectors]) -> Vectors:
    """Concatenate the embeddings (N, D) of several models, each scaled to unit length, and scale the result so too.

    The cosine of two joined embeddings is then the mean of the models' cosines. -> (N, sum of D)
    """
    return _scale(np.concatenate([_scale(member) for member in members], axis=1))


def _scale(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def rank_ensemble(folders: Sequence[RunFolder]) -> ClassSums:
    """Embed the test split by the models of finished runs, join the embeddings, and rank by them.

    Args:
        folders: folders of runs of one seed, one for each fold, with their checkpoints.

    Raises:
        InputError: if a checkpoint is missing.
    """
    members = []
    for folder in folders:
        if not folder.last_checkpoint.exists():
            raise InputError(f"{folder.path}: no checkpoints of a finished run; delete the folder to train it again")
        model = load(folder.path)
        settings, table = read_data_set(model)
        embedded = embed_split(model, table, "test", on_corrupt=settings.data.on_corrupt)
        members.append(embedded.vectors)
    evaluator = build_evaluator(settings, table, embedded.table)
    labels: list[npt.NDArray[np.int64]] = []
    values: dict[str, list[npt.NDArray[np.float64]]] = {metric: [] for metric in PER_QUERY}
    for ranked in evaluator.evaluate(join_embeddings(members)).lists:
        if all(name in ranked.values for name in PER_QUERY.values()):  # the finest level's, of several lists
            labels.append(embedded.table.labels[ranked.queries, 0])
            for metric, name in PER_QUERY.items():
                values[metric].append(ranked.values[name])
    joined = {metric: np.concatenate(parts) for metric, parts in values.items()}
    counts, sums = sum_by_class(np.concatenate(labels), joined)
    return ClassSums(counts, {metric: [shorten(row)] for metric, row in sums.items()})
