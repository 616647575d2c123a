"""What a model gives before its training: the backbone's features, their metrics, and the neighbors by the model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.data.prepared.cache import CacheFolder
from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import PCA
from dml.evaluation.raw_features import FixedNeighbors, PrincipalComponents
from dml.models.embedding import EmbeddingModel
from dml.models.recurrent import AnyModel
from dml.report.console import print_raw_metrics
from dml.retrieval.rows import ranking_device
from dml.retrieval.search import nearest_neighbors
from dml.run import loop
from dml.run.builders import build_metric_config, choose_tested_split
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import Settings
from dml.run.stored import Stage, plain_config
from dml.runtime.errors import InputError
from dml.runtime.processes import uses_cuda
from dml.runtime.run_folder import RunFolder, configuration_id
from dml.runtime.text import console, warn
from dml.training.data import DataModule, EvaluationData
from dml.training.embedders import CHOSEN_HEADS, RawFeatures
from dml.training.frozen import RAW, FeatureCache, FeatureEmbedder
from dml.training.module import MetricLearner

Metrics = dict[str, Any]

DECISIVE = ("seed", "data", "dataset", "transform", "model", "recurrent", "evaluation")
"""The parts of a configuration that the metrics of the features before the training depend on."""

PCA_IMAGES = 5_000
"""The largest number of training images whose principal components the features of the test are projected onto."""


class FeatureSource:
    """Computes features of images with the transform of a test, or takes them from the data set's cache folder.

    Args:
        settings: settings of the command, with the data, the transform and the trainer.
        model_config: configuration of the model, which may differ from that in ``settings``.
        model: network with its heads; the features follow its present weights.
        folder: cache folder of the data set, which exists; None for no files.
    """

    def __init__(
        self, settings: Settings, model_config: Any, model: EmbeddingModel, folder: CacheFolder | None
    ) -> None:
        self.settings = settings
        self.model_config = model_config
        self.model = model
        self.cache = FeatureCache(folder, warn)

    def load_raw(self, table: ImageTable, *, with_inputs: bool = False) -> Tensor:
        """Return the L2-normalized features (N, F) of the backbone; NaN for images that can't be read.

        ``with_inputs`` computes the head inputs in the same pass, to be loaded later.
        """
        heads = [*self.model.heads] if with_inputs and self.settings.evaluation.crops == 1 else []
        return self._load(table, [RAW, *heads])[RAW]

    def load_inputs(self, table: ImageTable) -> dict[str, Tensor]:
        """Return the inputs (N, ...) of each head for the images of a table; NaN for images that can't be read."""
        return self._load(table, [*self.model.heads])

    def _load(self, table: ImageTable, names: Sequence[str]) -> dict[str, Tensor]:
        described = {name: self._describe(name) for name in names}
        return self.cache.load(table, self.model.backbone, described, self._compute)

    def _describe(self, name: str) -> dict[str, Any]:
        """Return all that decides features of a name, beside the images and the weights of the backbone."""
        described = {
            "backbone": _to_plain(self.model_config.backbone),
            "transform": _to_plain(self.settings.transform.test),
            "precision": self.settings.trainer.precision,
            "background": self.settings.data.limits.color,
        }
        if name == RAW:
            return described | {"crops": self.settings.evaluation.crops}
        taps = self.model_config.taps
        tap = name if taps is None else taps[name]  # the network's stages have the names of the heads
        return described | {"tap": tap, "head": _to_plain(self.model_config.head[name])}

    def _compute(self, images: ImageTable, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
        reading = self.settings
        if reading.data.num_workers == "auto" and not uses_cuda(reading.trainer.accelerator):
            # large photographs take longer to decode than to embed
            reading = replace(reading, data=replace(reading.data, num_workers=os.cpu_count() or 1))
        if [*names] != [RAW]:
            reading = replace(reading, evaluation=replace(reading.evaluation, crops=1))
        alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}
        trainer = loop.build_testing_trainer(self.settings, **alone, limit_test_batches=1.0)
        embedder = FeatureEmbedder(self.model, names, len(images))
        device = next(self.model.parameters()).device
        trainer.test(embedder, loop.build_evaluation_data(reading, images), verbose=False)
        self.model.to(device)  # the end of the test takes it to the CPU, also during a training on a GPU
        return embedder.embedded.embeddings, embedder.embedded.rows


def _to_plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def build_feature_source(settings: Settings, model: EmbeddingModel) -> FeatureSource:
    """Build the source of the features that a training of the heads alone takes."""
    if (processes := loop.build_testing_trainer(settings).world_size) > 1:
        raise InputError(f"training.frozen=true: trains in one process, not in {processes}; trainer.devices=1")
    folder = None if settings.data.cache is None else make_cache_folder(settings)
    return FeatureSource(settings, settings.model, model, folder)


def evaluate_raw_features(
    stage: Stage, images: DataModule, model: AnyModel, folder: RunFolder, source: FeatureSource | None = None
) -> Metrics:
    """Compute the metrics of the backbone's features before any training -> raw/level0/recall@1 and so on.

    They are of the split that the run is tested on at its end. Features that are larger than the model's embeddings are
    also projected onto as many principal components, or onto all of them if few training images have fewer, for a fair
    comparison -> raw/pca/level0/recall@1 and so on. A resumed run reads all from its folder.
    """
    settings = stage.settings
    parts = {part: value for part, value in plain_config(stage.config).items() if part in DECISIVE}
    configuration = configuration_id(parts | {"precision": settings.trainer.precision})
    metrics = folder.raw_metrics(configuration)
    if metrics is None:
        images.tested_on = choose_tested_split(settings, images.table)
        line = "[bold]before[/]   testing the backbone as it is ... (evaluation.raw=false goes without)"
        rank_zero_only(console.print)(line)  # the test may take minutes
        trainer = loop.build_testing_trainer(settings)
        table = images.table.select_evaluated(images.tested_on)
        if source is None:
            features, rows = _embed_raw(trainer, images, model)
        else:
            features, rows = _keep_readable(source.load_raw(table, with_inputs=True))
        evaluator = Evaluator(table, build_metric_config(settings, table))
        device = ranking_device(trainer.strategy.root_device)
        metrics = evaluator(features.to(device), rows)
        if (size := sum(model.embed_dims.values())) < features.shape[1]:
            components = PrincipalComponents.fit(_embed_training_sample(settings, images, model, source), size)
            if component_count := len(components.deviations):  # fewer than `size` if there are few training images
                projected = evaluator(components.project(features, whiten=False).to(device), rows)
                metrics |= {f"{PCA}/{name}": value for name, value in projected.items()}
                metrics[f"{PCA}/size"] = component_count
        rank_zero_only(folder.write_raw_metrics)(metrics, configuration)
    rank_zero_only(print_raw_metrics)(metrics, choose_tested_split(settings, images.table))
    return {f"raw/{name}": value for name, value in metrics.items()}


def _embed_raw(trainer: Trainer, images: EvaluationData, model: AnyModel) -> tuple[Tensor, Tensor]:
    """Compute the backbone's features (R, F) of the readable images of the tested split, and their rows (R,)."""
    embedder = RawFeatures(model)
    trainer.test(embedder, images, verbose=False)
    return embedder.embedded.embeddings["raw"], embedder.embedded.rows


def _keep_readable(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return those features (R, F) that aren't NaN, as those of unreadable images are, and their rows (R,)."""
    rows = torch.nonzero(~features[:, 0].isnan()).flatten()
    return features[rows], rows


def _embed_training_sample(
    settings: Settings, images: DataModule, model: AnyModel, source: FeatureSource | None
) -> Tensor:
    """Compute the backbone's L2-normalized features (M, F) of evenly spread training images.

    They are at most 5,000, so that a large data set isn't embedded once more.
    """
    table = images.train_table
    rows = np.unique(np.linspace(0, len(table) - 1, min(PCA_IMAGES, len(table))).astype(np.int64))
    if source is not None:  # the training needs the features of all images anyway
        return _keep_readable(source.load_raw(table, with_inputs=True)[torch.from_numpy(rows)])[0]
    sample = loop.build_evaluation_data(settings, table.take(rows))
    sample.tested_on = "train"
    return _embed_raw(loop.build_testing_trainer(settings, limit_test_batches=1.0), sample, model)[0]


def store_fixed_neighbors(
    settings: Settings, learner: MetricLearner, images: DataModule, path: Path, count: int
) -> None:
    """Write the ``count`` nearest neighbors of each test image by the model as it is, unless the file holds them."""
    table = images.table.select_evaluated("test")
    if len(np.unique(table.split)) > 1 or (table.benchmark != EVERY_LEVEL).any():
        raise InputError(
            f"evaluation.fixed_neighbors={count}: {settings.dataset.name} has more than one list to search"
        )
    if path.exists():
        FixedNeighbors.read(path)  # an error about damage comes before the training
        return
    trainer = loop.build_testing_trainer(settings)
    images.tested_on = "test"
    trainer.test(learner, images, verbose=False)
    embeddings = learner.embedded.embeddings[CHOSEN_HEADS].to(ranking_device(trainer.strategy.root_device))
    neighbors = nearest_neighbors(embeddings, count)[1]
    rank_zero_only(FixedNeighbors(learner.embedded.rows.numpy(), neighbors.numpy()).write)(path)
