"""The test of a trained model: from the embeddings of a split to metrics.json and the pictures beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.data.copies import count_queries_in_gallery
from dml.data.limits import ImageLimits
from dml.data.table import ImageTable
from dml.evaluation.embedding_map import embedding_map
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.fixed_neighbors import FixedNeighbors, recall_among
from dml.evaluation.head_sets import list_evaluated_heads
from dml.evaluation.metric_names import HEADS
from dml.evaluation.per_query import join_lists, write_queries
from dml.evaluation.ranking.queries import PerQuery
from dml.evaluation.report import collect_versions, read_run, run_report
from dml.evaluation.table_pictures import write_retrieval_sheet
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.ops.run_folder import RunFolder
from dml.run import builders, console_output
from dml.run.evaluators import build_metric_config
from dml.training.data import EvaluationData
from dml.training.embedders import ALL_HEADS, ModelEmbedder
from dml.training.loggers.final_metrics import log_final_metrics

Metrics = dict[str, Any]


def run_test(
    config: DictConfig,
    trainer: Trainer,
    embedder: ModelEmbedder,
    images: EvaluationData,
    folder: RunFolder,
    *,
    split: str,
    description: Metrics,
    neighbors_file: Path,
) -> Metrics:
    """Embed and evaluate a split; write the metrics and pictures, log the metrics, and print them.

    Args:
        config: configuration of the tested stage.
        trainer: trainer of the pass over the split, and of the loggers that get the metrics.
        embedder: model that embeds the split.
        images: images of the split.
        folder: folder of retrieval.png, per_query.parquet, report.html and, last of all, metrics.json.
        split: name of the tested split, such as "test".
        description: values in metrics.json beside the metrics of the split.
        neighbors_file: file of the neighbours before the training, for evaluation.fixed_neighbors.

    Returns:
        The contents of metrics.json.
    """
    images.tested_on = split
    trainer.test(embedder, images, verbose=False)
    embedded, device = embedder.embedded, trainer.strategy.root_device
    table, settings = images.table.select_evaluated(split), config.evaluation
    skipped = len(table) - len(embedded.rows)
    tested = table.take(embedded.rows.numpy()) if skipped else table
    evaluator = Evaluator(tested, build_metric_config(config, table))
    embeddings = UnitEmbeddings.normalize(
        embedded.embeddings[ALL_HEADS].to(device), curvature=evaluator.config.curvature
    )
    pictures = [picture for picture in (settings.report, settings.sheet) if picture]
    evaluation = evaluator.evaluate(embeddings, neighbors=max([picture.neighbors for picture in pictures], default=0))
    metrics: Metrics = {**evaluation.metrics}
    for heads in list_evaluated_heads(config.model.heads, settings):
        head_metrics = evaluator.evaluate(embedded.embeddings[heads].to(device)).metrics
        metrics |= {f"{HEADS}/{heads}/{name}": value for name, value in head_metrics.items()}
    if split == "test" and settings.fixed_neighbors:
        metrics |= _recall_fixed(config, embeddings, tested.labels, embedded.rows, neighbors_file)
    if split == "test":
        for name, relabelled in builders.read_other_labels(config, images.table).items():
            other_evaluator = Evaluator(relabelled, build_metric_config(config, relabelled))
            other_metrics = other_evaluator(embeddings, embedded.rows)
            metrics |= {f"{name}/{metric}": value for metric, value in other_metrics.items()}
    if skipped:
        metrics["images_skipped"] = skipped
    if builders.compares_contents(config) and (in_gallery := count_queries_in_gallery(table))[1]:
        metrics["queries_in_gallery"] = in_gallery[0]
    metrics = description | metrics | {"split": split}
    _write_pictures(config, metrics, tested, embeddings, evaluation.lists, folder)
    log_final_metrics(trainer.loggers, metrics, folder)
    rank_zero_only(folder.write_metrics)(metrics)  # last of all, as a run with metrics.json is finished
    custom = evaluator.config.custom
    console_output.print_result(
        metrics, images.table, embedder.model, folder.path, selection=settings.selection, custom=custom
    )
    return metrics


def _recall_fixed(
    config: DictConfig, embeddings: UnitEmbeddings, labels: NDArray[np.int64], rows: Tensor, path: Path
) -> Metrics:
    """Compute recall among the neighbours of each image before the training -> fixed/level0/recall@1 and so on."""
    option = f"evaluation.fixed_neighbors={config.evaluation.fixed_neighbors}"
    if not path.exists():
        raise InputError(f"{option}: no {path}, which training leaves; null tests without")
    fixed = FixedNeighbors.read(path)
    if not np.array_equal(fixed.rows, rows.numpy()):
        raise InputError(f"{option}: {path} is of {len(fixed.rows)} images, not of the {len(rows)} tested")
    neighbors = torch.from_numpy(fixed.neighbors)
    recalls = recall_among(embeddings, labels, neighbors, config.evaluation.recall_at)
    return {f"fixed/{name}": value for name, value in recalls.items()}


@rank_zero_only
def _write_pictures(
    config: DictConfig,
    metrics: Metrics,
    table: ImageTable,
    embeddings: UnitEmbeddings,
    lists: list[PerQuery],
    folder: RunFolder,
) -> None:
    """Write retrieval.png, per_query.parquet and report.html, those of them that the configuration names."""
    sheet, report = config.evaluation.sheet, config.evaluation.report
    if sheet:
        write_retrieval_sheet(table, lists[0], folder.picture_file, ImageLimits.from_settings(config.data), **sheet)
    if report:
        queries = np.concatenate([part.queries for part in lists])
        positions = embedding_map(embeddings.take(queries), seed=report.seed) if report.map else None
        described = {"levels": table.levels, "names": table.names, "made_with": collect_versions()}
        queries_table = join_lists(table, lists, report.neighbors, **described, positions=positions)
        write_queries(folder.queries_file, queries_table)
        with replacing(folder.report_file) as partial:
            partial.write_text(run_report(read_run(folder.path, metrics)), encoding="utf-8")
