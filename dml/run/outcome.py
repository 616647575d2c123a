"""What a test gives, and what it leaves in the run's folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.data.copies import number_in_gallery
from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.fixed import recall_among
from dml.evaluation.items import ranking_device
from dml.evaluation.judge import Judge
from dml.evaluation.map import embedding_map
from dml.evaluation.per_query import QueryTable, write_queries
from dml.evaluation.queries import PerQuery
from dml.evaluation.report import read_run, run_report, versions
from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.ops.run_folder import RunFolder, configuration_id
from dml.retrieval.search import nearest_neighbors
from dml.run import build, loop, present
from dml.run.head_sets import evaluated_heads
from dml.run.stored import as_stored
from dml.training.data import DataModule, EvaluationData
from dml.training.embedding import ALL_HEADS, AnyModel, Embedded, ModelEmbedder, RawFeatures, evaluate_heads
from dml.training.module import MetricLearner

Metrics = dict[str, Any]


RAW_PARTS = ("dataset", "transform", "data", "model", "recurrent", "evaluation", "seed")
"""What the backbone's own features, and their metrics, depend on, beside the precision."""


def raw(config: DictConfig, images: DataModule, model: AnyModel, folder: RunFolder) -> Metrics:
    """The test metrics of the backbone's own features, before any training; a resumed run finds them in its folder."""
    stored = as_stored(config)
    parts = {part: stored[part] for part in RAW_PARTS}
    configuration = configuration_id(parts | {"precision": config.trainer.precision})
    metrics = folder.raw_metrics(configuration)
    if metrics is None:
        metrics = _raw(config, images, model)
        rank_zero_only(folder.write_raw_metrics)(metrics, configuration)
    present.before(metrics)
    return {f"raw/{name}": value for name, value in metrics.items()}


def _raw(config: DictConfig, images: DataModule, model: AnyModel) -> Metrics:
    trainer = loop.testing_trainer(config)
    embedder = RawFeatures(model)
    trainer.test(embedder, images, verbose=False)
    features = embedder.embedded.embeddings["raw"].to(ranking_device(trainer.strategy.root_device))
    return build.judge(config, images.table.evaluated("test"))(features, embedder.embedded.rows)


def fix_neighbors(config: DictConfig, learner: MetricLearner, images: DataModule, path: Path) -> None:
    """Keeps each test image's nearest neighbours by the network as it is, unless ``path`` holds them.

    Raises:
        InputError: if the test isn't of one split that is its own gallery.
    """
    asked, table = config.evaluation.fixed_neighbors, images.table.evaluated("test")
    if len(np.unique(table.split)) > 1 or (table.benchmark != EVERY_LEVEL).any():
        raise InputError(f"evaluation.fixed_neighbors={asked}: {config.dataset.name} has more than one list to search")
    if path.exists():
        return
    trainer = loop.testing_trainer(config)
    images.tested_on = "test"
    trainer.test(learner, images, verbose=False)
    embedded = learner.embedded
    embeddings = embedded.embeddings[ALL_HEADS].to(ranking_device(trainer.strategy.root_device))
    found = nearest_neighbors(embeddings, asked)[1]
    _keep_neighbors(path, embedded.rows, found)


@rank_zero_only
def _keep_neighbors(path: Path, rows: Tensor, neighbors: Tensor) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, rows=rows.numpy(), neighbors=neighbors.numpy())


def _among_fixed(config: DictConfig, embedded: Embedded, judge: Judge, path: Path) -> Metrics:
    """Recall among the neighbours that `fix_neighbors` kept."""
    asked = f"evaluation.fixed_neighbors={config.evaluation.fixed_neighbors}"
    if not path.exists():
        raise InputError(f"{asked}: no {path}, which training leaves; null tests without")
    kept = np.load(path)
    if not np.array_equal(kept["rows"], embedded.rows.numpy()):
        raise InputError(f"{asked}: {path} is of {len(kept['rows'])} images, not of the {len(embedded.rows)} tested")
    labels, neighbors = judge.table.labels[kept["rows"]], torch.from_numpy(kept["neighbors"])
    found = recall_among(embedded.embeddings[ALL_HEADS], labels, neighbors, config.evaluation.recall_at)
    return {f"fixed/{name}": value for name, value in found.items()}


def test(
    config: DictConfig,
    trainer: Trainer,
    embedder: ModelEmbedder,
    images: EvaluationData,
    folder: RunFolder,
    *,
    split: str,
    described: Metrics,
    fixed: Path,
) -> Metrics:
    """Embeds and judges a split; writes its metrics and pictures, and shows the metrics.

    Args:
        config: the configuration.
        trainer: of the pass over the split.
        embedder: embeds the split with the model.
        images: its data.
        folder: for retrieval.png, per_query.parquet, report.html and, last of all, metrics.json.
        split: "test", or any other.
        described: what goes into metrics.json beside the split's metrics.
        fixed: where training has kept the test images' neighbours, if evaluation.fixed_neighbors asks for them.
    """
    images.tested_on = split
    trainer.test(embedder, images, verbose=False)
    embedded, device = embedder.embedded, trainer.strategy.root_device
    judge = build.judge(config, images.table.evaluated(split))
    settings = config.evaluation
    kept = max(settings.report.neighbors if settings.report else 0, settings.sheet.neighbors if settings.sheet else 0)
    embeddings = embedded.embeddings[ALL_HEADS].to(ranking_device(device))
    ranked = judge.rank(embeddings, embedded.rows, neighbors=kept)
    metrics: Metrics = judge.metrics_of(ranked, embeddings, embedded.rows)
    metrics |= evaluate_heads(embedded, evaluated_heads(config), judge, device)
    if settings.fixed_neighbors and split == "test":
        metrics |= _among_fixed(config, embedded, judge, fixed)
    if split == "test":
        for name, table in build.other_labels(config, images.table).items():
            found = build.judge(config, table)(embeddings, embedded.rows)
            metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
    if skipped := len(judge.table) - len(embedded.rows):
        metrics["images_skipped"] = skipped
    if build.compares_contents(config) and (in_gallery := number_in_gallery(judge.table))[1]:
        metrics["queries_in_gallery"] = in_gallery[0]
    metrics = described | metrics | {"split": split}
    _leave(config, metrics, judge, embedded, ranked, folder)
    present.result(metrics, images.table, embedder.model, folder.path, asked=settings.selection)
    return metrics


@rank_zero_only
def _leave(
    config: DictConfig, metrics: Metrics, judge: Judge, embedded: Embedded, ranked: list[PerQuery], folder: RunFolder
) -> None:
    table, settings = judge.table.take(embedded.rows.numpy()), config.evaluation
    if settings.sheet:
        present.sheet(table, ranked[0], folder.picture_file, **settings.sheet)
    if settings.report:
        queries = np.concatenate([part.queries for part in ranked])
        embeddings = embedded.embeddings[ALL_HEADS][queries]
        places = embedding_map(embeddings, seed=settings.report.seed) if settings.report.map else None
        described = {"levels": table.levels, "names": table.names, "positions": places, "made_with": versions()}
        write_queries(folder.queries_file, _query_table(table, ranked, settings.report.neighbors, described))
        with replacing(folder.report_file) as partial:
            partial.write_text(run_report(read_run(folder.path, metrics)), encoding="utf-8")
    folder.write_metrics(metrics)


def _query_table(table: ImageTable, ranked: list[PerQuery], neighbors: int, described: dict[str, Any]) -> QueryTable:
    """The queries of all lists; where a list lacks another's metric it is NaN."""
    names = dict.fromkeys(name for part in ranked for name in part.values)
    nearest = min(neighbors, *(part.neighbors.shape[1] for part in ranked))
    joined = PerQuery.joined(
        [
            replace(
                part,
                values={name: part.values.get(name, np.full(len(part.queries), np.nan)) for name in names},
                neighbors=part.neighbors[:, :nearest],
                similarities=part.similarities[:, :nearest],
            )
            for part in ranked
        ]
    )
    return QueryTable.of(
        joined,
        table.paths[joined.queries],
        table.labels[joined.queries],
        gallery_paths=table.paths,
        gallery_labels=table.labels,
        **described,
    )
