"""The test of a model whose queries search a gallery that another run's model embedded: ``evaluation.gallery``."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.evaluation.evaluator import Evaluation, Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.names import ASYMMETRIC, ASYMMETRIC_METRICS, describe_metric
from dml.metrics.compatibility import mean_pair_distances
from dml.report.statistics import mean_difference
from dml.run import builders
from dml.run.config_folders import pretrained_name
from dml.run.settings import Settings
from dml.run.trained_run import TrainedRun, open_run
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.text import in_markup
from dml.training.data import EvaluationData
from dml.training.embedders import CHOSEN_HEADS

KEY = "evaluation.gallery"


def open_gallery_run(settings: Settings, dimension: int, *, may_choose: bool = False) -> TrainedRun | None:
    """Open the run of ``evaluation.gallery``, or else of ``compatible.with``; None without one.

    Args:
        settings: settings of the tested stage.
        dimension: size of the embeddings of the tested model.
        may_choose: whether the model isn't trained yet, so that its validation may choose heads.

    Raises:
        InputError: if there is no such run, or its embeddings have another size than those of the tested model.
    """
    key, place = KEY, settings.evaluation.gallery
    if place is None and settings.compatible:
        key, place = "compatible.with", settings.compatible.with_
    if not place or place.endswith(".parquet") or pretrained_name(place) is not None:
        return None
    run = open_run(key, place, trust=settings.trust)
    size = sum(run.model.embed_dims[head] for head in run.model.chosen_heads)
    if size != dimension:
        raise InputError(
            f"{key}={run.place}: its vectors have {size} dimensions, those of the tested model {dimension}"
        )
    if may_choose and builders.build_head_choice(settings) is not None:
        raise InputError(f"{key}: heads.choose=true may choose vectors of another size; heads.choose=false")
    return run


def search_other_gallery(
    run: TrainedRun,
    settings: Settings,
    evaluator: Evaluator,
    embeddings: UnitEmbeddings,
    rows: Tensor,
    images: EvaluationData,
) -> dict[str, Any]:
    """Search the gallery of another run's model with the queries of both models, and print a line of the difference.

    ``embeddings`` (N, D) are those of the tested ``rows`` (N,) of the split by the tested model. The metrics are those
    of `compare_models`; the fingerprint of the run's model is beside them.
    """
    embedded = run.embed(settings, images.table, images.tested_on)
    if not torch.equal(embedded.rows, rows):
        raise InputError(f"{KEY}={run.place}: its transform read {len(embedded.rows)} images, the test's {len(rows)}")
    old = UnitEmbeddings.normalize(embedded.embeddings[CHOSEN_HEADS].to(embeddings.rows.device))
    metrics = compare_models(evaluator, embeddings, old)
    for name in ("level0/recall@1", "level0/map@r"):
        parts = (metrics[f"{ASYMMETRIC}/{part}/{name}"] for part in ("new_old", "gain", "gain_low", "gain_high"))
        value, gain, low, high = (100 * part for part in parts)
        verdict = "holds" if gain > 0 else "doesn't hold"
        line = (
            f"{describe_metric(name).label} {value:.1f} % in the gallery of {run.place}, {gain:+.1f} [{low:+.1f}, "
            f"{high:+.1f}] to that of its own queries: M(n, o) > M(o, o) {verdict}"
        )
        rank_zero_only(console.print)(f"[bold]gallery[/]  {in_markup(line)}")
    return metrics | {"gallery_fingerprint": run.fingerprint}


def compare_models(evaluator: Evaluator, new: UnitEmbeddings, old: UnitEmbeddings) -> dict[str, float]:
    """Compute recall@1 and MAP@R of old and new queries in the old gallery and of new ones in the new gallery.

    ``new`` and ``old`` (N, D) are the embeddings of the evaluator's images by the tested model and that of the gallery.

    Returns:
        - asymmetric/old_old/..., new_old/... and new_new/...: the metrics by queries and gallery.
        - asymmetric/gain/...: M(new, old) - M(old, old); gain_low and gain_high: 95 % interval over the classes;
          holds: 1.0 if the gain is above 0.
        - asymmetric/same_class/..., other_class/...: `mean_pair_distances`, in the first of several benchmark lists.
    """
    config = replace(evaluator.config, metrics=("recall", "map@r"), recall_at=(1,), clustering=False)
    evaluator, labels = replace(evaluator, config=config), evaluator.table.labels
    first = evaluator.benchmark_lists[0].name_gallery()
    sides = first.queries, first.searched
    tests: dict[str, Evaluation] = {}
    metrics: dict[str, float] = {}
    for pair, query, gallery in (("old_old", old, old), ("new_old", new, old), ("new_new", new, new)):
        tests[pair] = evaluator.evaluate(query, gallery=gallery)
        queries, items = (
            part.take(rows).rows.cpu().numpy() for part, rows in zip((query, gallery), sides, strict=True)
        )
        classes, item_classes = (labels[rows, first.level or 0] for rows in sides)
        distances = mean_pair_distances(queries, items, classes, item_classes, first.excluded)
        metrics |= {
            f"{ASYMMETRIC}/{kind}/{pair}": value for kind, value in zip(ASYMMETRIC_METRICS, distances, strict=True)
        }
    for lists in zip(*(test.lists for test in tests.values()), strict=True):
        query_labels = labels[lists[0].queries]
        level = int(np.argmax((query_labels >= 0).all(axis=0)))  # queries of a coarser list may have no finer class
        for name, values in lists[0].values.items():
            metrics |= {f"{ASYMMETRIC}/{pair}/{name}": test.metrics[name] for pair, test in tests.items()}
            gain = mean_difference(values, lists[1].values[name], query_labels[:, level])
            parts = {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high, "holds": float(gain.mean > 0)}
            metrics |= {f"{ASYMMETRIC}/{part}/{name}": value for part, value in parts.items()}
    return metrics
