"""The ensemble of the models of all folds, tested on the test classes."""

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dml.inference.loading import load
from dml.inference.split_embeddings import build_evaluator, embed_split, read_data_set
from dml.ops.errors import InputError
from dml.ops.filesystem.checksums import DamageError
from dml.ops.run_folders.run_files import read_values, write_values
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.plans import PlannedRun
from dml.report.statistics import PER_QUERY, ClassSums, shorten, sum_by_class

Vectors = npt.NDArray[np.float32]


def join_embeddings(members: Sequence[Vectors]) -> Vectors:
    """Concatenate the embeddings (N, D) of several models, each scaled to unit length, and scale the result so too.

    The cosine of two joined embeddings is then the mean of the models' cosines. -> (N, sum of D)
    """
    joined = np.concatenate([_scale(member) for member in members], axis=1)
    return _scale(joined)


def _scale(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def rank_ensemble(runs: Sequence[PlannedRun]) -> ClassSums:
    """Embed the test split by the models of finished runs, join the embeddings, and rank by them; it is stored.

    Args:
        runs: runs of one seed, one for each fold, with their checkpoints.

    Raises:
        InputError: if a checkpoint is missing.
    """
    file = ensemble_file(runs)
    if file.exists():
        try:
            return ClassSums(**read_values(file, may_nest=True)[0])
        except (DamageError, TypeError) as error:
            raise InputError(f"{file}: damaged ({error}); delete it to test the ensemble again") from error
    members = []
    for run in runs:
        if not RunFolder(run.folder).last_checkpoint.exists():
            raise InputError(f"{run.folder}: no checkpoints of a finished run; delete the folder to train it again")
        model = load(run.folder)
        config, table = read_data_set(model)
        embedded = embed_split(model, table, "test", on_corrupt=config.data.on_corrupt)
        members.append(embedded.vectors)
    evaluator = build_evaluator(config, table, embedded.table)
    values: dict[str, list[npt.NDArray[np.float64]]] = {metric: [] for metric in PER_QUERY}
    labels = []
    for ranked in evaluator.evaluate(join_embeddings(members)).lists:
        if all(name in ranked.values for name in PER_QUERY.values()):  # the finest level's, of several lists
            labels.append(embedded.table.labels[ranked.queries, 0])
            for metric, name in PER_QUERY.items():
                values[metric].append(ranked.values[name])
    counts, sums = sum_by_class(
        np.concatenate(labels), {metric: np.concatenate(parts) for metric, parts in values.items()}
    )
    tested = ClassSums(counts, {metric: [shorten(row)] for metric, row in sums.items()})
    file.parent.mkdir(exist_ok=True)
    write_values(file, asdict(tested), {})
    return tested


def ensemble_file(runs: Sequence[PlannedRun]) -> Path:
    """Return the file of the ensemble's test, beside the folders of the runs."""
    names = sha256(" ".join(f"{run.folder.parent.name}/{run.folder.name}" for run in runs).encode()).hexdigest()
    return runs[0].folder.parents[1] / "ensembles" / f"{names[:12]}.json"


def join_tests(tests: Sequence[ClassSums]) -> ClassSums:
    """Join the tests of several seeds, each of the same queries."""
    return ClassSums(
        tests[0].counts, {metric: [row for test in tests for row in test.sums[metric]] for metric in PER_QUERY}
    )
