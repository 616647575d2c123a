"""The tests of a model before its training: the metrics of the backbone's features, and the neighbors by the model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.data.table import EVERY_LEVEL
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import PCA
from dml.evaluation.raw_features import FixedNeighbors, PrincipalComponents
from dml.models.recurrent import AnyModel
from dml.report.console import print_raw_metrics
from dml.retrieval.rows import ranking_device
from dml.retrieval.search import nearest_neighbors
from dml.run import builders, loop
from dml.run.evaluators import build_metric_config, choose_tested_split
from dml.run.feature_source import FeatureSource
from dml.run.settings import Settings
from dml.run.stages import Stage
from dml.run.stored import plain_config
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder, configuration_id
from dml.training.data import DataModule, EvaluationData
from dml.training.embedders import CHOSEN_HEADS, RawFeatures
from dml.training.module import MetricLearner

Metrics = dict[str, Any]

DECISIVE = ("seed", "data", "dataset", "transform", "model", "recurrent", "evaluation")
"""The parts of a configuration that the metrics of the features before the training depend on."""

PCA_IMAGES = 5_000
"""The largest number of training images whose principal components the features of the test are projected onto."""


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
    sample = builders.build_evaluation_data(settings, table.take(rows))
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
