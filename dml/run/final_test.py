"""The test of a trained model: from the embeddings of a split to metrics.json and the pictures beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.data.overview import EXCLUDE_COPIES, count_queries_in_gallery
from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import HEADS, OF_RANKS, RERANKED, join_head_names
from dml.evaluation.ranking import PerQuery
from dml.evaluation.raw_features import FixedNeighbors, recall_among
from dml.evaluation.threshold import evaluate_threshold, make_pairs
from dml.metrics.pairs import LabeledPairs
from dml.report.console import print_result
from dml.report.page import write_pictures
from dml.retrieval.rows import UnitEmbeddings
from dml.run import builders
from dml.run.builders import build_metric_config, build_threshold_settings, list_tested_heads
from dml.run.settings import Settings
from dml.run.stored import Stage, plain_config
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.training.data import EvaluationData
from dml.training.embedders import CHOSEN_HEADS, ModelEmbedder
from dml.training.loggers import log_final_metrics

Metrics = dict[str, Any]


def run_test(
    stage: Stage,
    trainer: Trainer,
    embedder: ModelEmbedder,
    images: EvaluationData,
    folder: RunFolder,
    *,
    split: str,
    description: Metrics,
    run: RunFolder,
) -> Metrics:
    """Embed and evaluate a split; write the metrics and pictures, log the metrics, and print them.

    The loggers of the trainer get the metrics, and ``folder`` metrics.json last of all, which has the values of
    ``description`` too. ``run`` has the neighbors for evaluation.fixed_neighbors.
    """
    settings = stage.settings
    images.tested_on = split
    model = embedder.model
    trainer.test(embedder, images, verbose=False)
    evaluation, rows = settings.evaluation, embedder.embedded.rows
    table = images.table.select_evaluated(split)
    skipped = len(table) - len(rows)
    tested = table.take(rows.numpy()) if skipped else table
    evaluator = Evaluator(tested, build_metric_config(settings, table))
    embeddings, lists, metrics = _evaluate(settings, evaluator, embedder, trainer.strategy.root_device)
    if folder.is_evaluation and settings.dataset.queries_in_gallery is None:
        evaluator.check_copies(embeddings, f"{EXCLUDE_COPIES}, if it is a file of the same content")
    if split == "test":
        metrics |= _compute_test_metrics(settings, images.table, embeddings, rows, run.fixed_neighbors_file)
    if skipped and settings.trainer.limit_test_batches is None:  # else the images beyond aren't skipped as unreadable
        metrics["images_skipped"] = skipped
    if builders.compares_contents(settings) and (in_gallery := count_queries_in_gallery(table))[1]:
        metrics["queries_in_gallery"] = in_gallery[0]
    metrics |= evaluate_model_threshold(settings, trainer, embedder, images, embeddings, tested, folder)
    device = trainer.strategy.root_device  # a GPU's rounding is another than a CPU's, and so are trained networks
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    size = sum(model.embed_dims[head] for head in model.chosen_heads)
    metrics = description | metrics | {"vector": f"{size:,} dimensions, cosine"}
    if model.chosen_heads != (*model.embed_dims,):
        metrics["chosen_heads"] = join_head_names(model.chosen_heads)
    metrics |= {"split": split, "device": name}
    limits = settings.data.limits
    rank_zero_only(write_pictures)(
        folder, metrics, tested, embeddings, lists, limits, sheet=evaluation.sheet, report=evaluation.report
    )
    log_final_metrics(trainer.loggers, metrics, folder)
    rank_zero_only(folder.write_metrics)(metrics)  # last of all, as a run with metrics.json is finished
    rank_zero_only(print_result)(
        metrics,
        images.table.levels,
        list(model.embed_dims),
        folder.path,
        settings=plain_config(stage.config),
        custom=evaluator.config.custom,
    )
    return metrics


def _evaluate(
    settings: Settings, evaluator: Evaluator, embedder: ModelEmbedder, device: torch.device
) -> tuple[UnitEmbeddings, list[PerQuery], Metrics]:
    """Evaluate what was embedded -> embeddings of the chosen heads, the lists of queries for the pictures, metrics.

    The metrics are those of the chosen heads, of other sets of heads, and of the re-ranking.
    """
    evaluation, embedded = settings.evaluation, embedder.embedded.embeddings
    embeddings = UnitEmbeddings.normalize(embedded[CHOSEN_HEADS].to(device))
    pictures = [picture for picture in (evaluation.report, evaluation.sheet) if picture]
    evaluated = evaluator.evaluate(embeddings, neighbors=max([picture.neighbors for picture in pictures], default=0))
    metrics: Metrics = {**evaluated.metrics}
    for heads in list_tested_heads(settings):
        head_metrics = evaluator.evaluate(embedded[heads].to(device)).metrics
        metrics |= {f"{HEADS}/{heads}/{name}": value for name, value in head_metrics.items()}
    if name := evaluation.reranking:
        config = replace(evaluator.config, metrics=evaluator.config.select_kind(*OF_RANKS))
        reranked = replace(evaluator, config=config).evaluate(embeddings, reranking=name).metrics
        metrics |= {f"{RERANKED}/{name}/{metric}": value for metric, value in reranked.items()}
    return embeddings, evaluated.lists, metrics


def _compute_test_metrics(
    settings: Settings, table: ImageTable, embeddings: UnitEmbeddings, rows: Tensor, neighbors_file: Path
) -> Metrics:
    """Compute the metrics that no other split has: recall among fixed neighbors, and the metrics by other labels."""
    metrics: Metrics = {}
    if settings.evaluation.fixed_neighbors:
        labels = table.select_evaluated("test").labels[rows.numpy()]
        metrics |= _recall_fixed(settings, embeddings, labels, rows, neighbors_file)
    for name, relabeled in builders.read_other_labels(settings, table).items():
        other_evaluator = Evaluator(relabeled, build_metric_config(settings, relabeled))
        metrics |= {f"{name}/{metric}": value for metric, value in other_evaluator(embeddings, rows).items()}
    return metrics


def _recall_fixed(
    settings: Settings, embeddings: UnitEmbeddings, labels: NDArray[np.int64], rows: Tensor, path: Path
) -> Metrics:
    """Compute recall among the neighbors of each image before the training -> fixed/level0/recall@1 and so on."""
    fixed = FixedNeighbors.read(path) if path.exists() else None
    if fixed is None or not np.array_equal(fixed.rows, rows.numpy()):
        raise InputError(
            f"evaluation.fixed_neighbors={settings.evaluation.fixed_neighbors}: {path}, which a training leaves, isn't "
            f"there or is of other images than the {len(rows)} tested; null tests without"
        )
    neighbors = torch.from_numpy(fixed.neighbors)
    recalls = recall_among(embeddings, labels, neighbors, settings.evaluation.recall_at)
    return {f"fixed/{name}": value for name, value in recalls.items()}


def evaluate_model_threshold(
    settings: Settings,
    trainer: Trainer,
    embedder: ModelEmbedder,
    images: EvaluationData,
    embeddings: UnitEmbeddings,
    tested: ImageTable,
    folder: RunFolder,
) -> Metrics:
    """Evaluate the threshold of a model, and write the curves of the splits.

    The validation split is embedded for it, unless it is the tested one.
    """
    threshold = build_threshold_settings(settings)
    pairs = make_pairs(embeddings, tested) if threshold else None
    if threshold is None or pairs is None:
        rank_zero_only(folder.write_threshold_curves)({})
        return {}
    split = images.tested_on
    validated = pairs if split == "val" else _embed_validation(trainer, embedder, images)
    metrics, curves = evaluate_threshold(split, pairs, validated, threshold)
    rank_zero_only(folder.write_threshold_curves)({name: curve.tolist() for name, curve in curves.items()})
    return metrics


def _embed_validation(trainer: Trainer, embedder: ModelEmbedder, images: EvaluationData) -> LabeledPairs | None:
    """Embed the validation split and return its pairs; None if there is no such split."""
    table = images.table.select_evaluated("val")
    if not len(table):
        return None
    split, images.tested_on = images.tested_on, "val"
    trainer.test(embedder, images, verbose=False)
    images.tested_on = split
    embedded = embedder.embedded
    embeddings = UnitEmbeddings.normalize(embedded.embeddings[CHOSEN_HEADS].to(trainer.strategy.root_device))
    is_whole = len(embedded.rows) == len(table)  # images that can't be read may be skipped
    return make_pairs(embeddings, table if is_whole else table.take(embedded.rows.numpy()))
