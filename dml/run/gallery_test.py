"""The test of a model whose queries search a gallery that another run's model embedded: ``evaluation.gallery``."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.evaluation.evaluator import Evaluation, Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.names import ASYMMETRIC, describe_metric
from dml.metrics.compatibility import mean_pair_distances
from dml.report.statistics import Difference, mean_difference
from dml.run import builders, loop
from dml.run.settings import Settings
from dml.run.trained_run import TrainedRun, open_run
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.text import in_markup
from dml.training.data import EvaluationData
from dml.training.embedders import CHOSEN_HEADS, Embedded

KEY = "evaluation.gallery"
METRICS = ("recall", "map@r")
"""The metrics of the queries in a gallery of the other model; recall is recall@1."""


def open_gallery_run(settings: Settings, dimension: int) -> TrainedRun | None:
    """Open the run of ``evaluation.gallery``; None without one.

    Args:
        settings: settings of the tested stage.
        dimension: size of the embeddings of the tested model.

    Raises:
        InputError: if there is no such run, or its embeddings have another size.
    """
    if settings.evaluation.gallery is None:
        return None
    run = open_run(KEY, settings.evaluation.gallery, trust=settings.trust)
    size = sum(run.model.embed_dims[head] for head in run.model.chosen_heads)
    if size != dimension:
        raise InputError(
            f"{KEY}={run.place}: its vectors have {size} dimensions, those of the tested model {dimension}; a run "
            f"whose heads {'+'.join(run.model.chosen_heads)} and model.embed_dim give {dimension}"
        )
    return run


def check_gallery_run(settings: Settings, dimension: int) -> None:
    """Make sure, before a training, that its test can search the gallery of ``evaluation.gallery``.

    Raises:
        InputError: if `open_gallery_run` raises one, or the validation may choose heads of another size.
    """
    if open_gallery_run(settings, dimension) is not None and builders.build_head_choice(settings) is not None:
        raise InputError(f"{KEY}: heads.choose=true may choose vectors of another size; heads.choose=false")


def embed_tested(run: TrainedRun, settings: Settings, images: EvaluationData) -> Embedded:
    """Embed the tested images with the model of another run, and with the transform and the views of that run's test.

    Args:
        run: run whose model embeds.
        settings: settings of the test, which say how images are read.
        images: images of the test.
    """
    data = replace(settings.data, background=run.settings.data.background)
    reading = replace(run.settings, data=data, dataset=settings.dataset, trainer=settings.trainer)
    embedder, loaded = (
        builders.build_embedder(reading, run.model),
        builders.build_evaluation_data(reading, images.table),
    )
    loaded.tested_on = images.tested_on
    loop.build_testing_trainer(settings).test(embedder, loaded, verbose=False)
    return embedder.embedded


def search_other_gallery(
    run: TrainedRun,
    settings: Settings,
    evaluator: Evaluator,
    embeddings: UnitEmbeddings,
    rows: Tensor,
    images: EvaluationData,
) -> dict[str, Any]:
    """Search the gallery of another run's model with the queries of both models, and compare the results.

    Args:
        run: run whose model, the "old" one, embeds the gallery.
        settings: settings of the test.
        evaluator: evaluator of the tested images.
        embeddings: (N, D) embeddings of the tested images by the tested model, the "new" one.
        rows: (N,) rows of the tested images in the table of the split.
        images: images of the test.

    Returns:
        Metrics named asymmetric/..., and the fingerprint of the run's model.

    Raises:
        InputError: if the other model's test can't read the same images.
    """
    embedded = embed_tested(run, settings, images)
    if not torch.equal(embedded.rows, rows):
        raise InputError(f"{KEY}={run.place}: its transform read {len(embedded.rows)} images, the test's {len(rows)}")
    old = UnitEmbeddings.normalize(embedded.embeddings[CHOSEN_HEADS].to(embeddings.rows.device))
    metrics, gains = compare_models(evaluator, embeddings, old)
    rank_zero_only(_print_gains)(run.place, metrics, gains)
    return metrics | {"gallery_fingerprint": run.fingerprint}


def compare_models(
    evaluator: Evaluator, new: UnitEmbeddings, old: UnitEmbeddings
) -> tuple[dict[str, float], dict[str, Difference]]:
    """Compute recall@1 and MAP@R of old and new queries in the old gallery, of new ones in the new gallery, and gains.

    Args:
        evaluator: evaluator of the images, which chooses queries, gallery and exclusions.
        new: (N, D) embeddings by the tested model.
        old: (N, D) embeddings by the model of the gallery.

    Returns:
        Metrics named asymmetric/..., and M(new, old) - M(old, old) with an interval over the classes, by metric.
    """
    config = replace(evaluator.config, metrics=METRICS, recall_at=(1,), clustering=False)
    evaluator = replace(evaluator, config=config)
    pairs = {"old_old": (old, old), "new_old": (new, old), "new_new": (new, new)}
    tests = {name: evaluator.evaluate(query, gallery=gallery) for name, (query, gallery) in pairs.items()}
    metrics = {
        f"{ASYMMETRIC}/{pair}/{name}": value
        for pair, test in tests.items()
        for name, value in test.metrics.items()
        if any(name in part.values for part in test.lists)
    }
    first, labels = evaluator.benchmark_lists[0].name_gallery(), evaluator.table.labels
    for pair in ("old_old", "new_old"):
        query, gallery = (part.rows.cpu().numpy() for part in pairs[pair])
        classes, item_classes = (labels[part, first.level or 0] for part in (first.queries, first.searched))
        distances = mean_pair_distances(
            query[first.queries], classes, gallery[first.searched], item_classes, first.excluded
        )
        metrics |= {f"{ASYMMETRIC}/{name}/{pair}": value for name, value in distances._asdict().items()}
    gains = _compare_queries(tests["old_old"], tests["new_old"], labels)
    for name, gain in gains.items():
        metrics |= {
            f"{ASYMMETRIC}/gain/{name}": gain.mean,
            f"{ASYMMETRIC}/gain_low/{name}": gain.low,
            f"{ASYMMETRIC}/gain_high/{name}": gain.high,
            f"{ASYMMETRIC}/holds/{name}": float(gain.mean > 0),
        }
    return metrics, gains


def _compare_queries(first: Evaluation, second: Evaluation, labels: NDArray[np.int64]) -> dict[str, Difference]:
    """Compute the mean difference of each metric, with an interval over the classes of the finest level."""
    gains = {}
    for before, after in zip(first.lists, second.lists, strict=True):
        queries = labels[before.queries]
        level = int(np.argmax((queries >= 0).all(axis=0)))  # queries of a coarser list may have no finer class
        for name, values in before.values.items():
            gains[name] = mean_difference(values, after.values[name], queries[:, level])
    return gains


def _print_gains(place: str, metrics: dict[str, float], gains: dict[str, Difference]) -> None:
    """Print a line about each metric of the finest level: does a new query find more in the old gallery?"""
    for name, gain in gains.items():
        if name.startswith("level0/"):
            value, verdict = metrics[f"{ASYMMETRIC}/new_old/{name}"], "more" if gain.mean > 0 else "not more"
            line = (
                f"{describe_metric(name).label} {value:.1%} in the gallery of {place}, {100 * gain.mean:+.1f} points "
                f"[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}] to its own queries: {verdict} than these find"
            )
            console.print(f"[bold]gallery[/]  {in_markup(line)}")
