"""The tests of a model before its training: the metrics of the backbone's features, and the neighbours by the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from pytorch_lightning.utilities import rank_zero_only

from dml.data.table import EVERY_LEVEL
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.fixed_neighbors import FixedNeighbors
from dml.evaluation.result_lines import print_raw_metrics, print_raw_test
from dml.evaluation.unit_embeddings import ranking_device
from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder, configuration_id
from dml.retrieval.search import nearest_neighbors
from dml.run import loop
from dml.run.evaluators import build_metric_config, choose_final_split
from dml.run.stored_configuration import plain_config
from dml.training.data import DataModule
from dml.training.embedders import ALL_HEADS, AnyModel, RawFeatures
from dml.training.module import MetricLearner

Metrics = dict[str, Any]

RAW_PARTS = ("dataset", "transform", "data", "model", "recurrent", "evaluation", "seed")
"""The parts of a configuration, beside the precision, that decide the metrics of the backbone's features."""


def evaluate_raw_features(config: DictConfig, images: DataModule, model: AnyModel, folder: RunFolder) -> Metrics:
    """Compute the metrics of the backbone's features before any training -> raw/level0/recall@1 and so on.

    They are of the split that the run is tested on at its end.

    A resumed run reads them from its folder.
    """
    parts = {part: value for part, value in plain_config(config).items() if part in RAW_PARTS}
    configuration = configuration_id(parts | {"precision": config.trainer.precision})
    metrics = folder.raw_metrics(configuration)
    if metrics is None:
        images.tested_on = choose_final_split(images.table)
        rank_zero_only(print_raw_test)()
        trainer, embedder = loop.build_testing_trainer(config), RawFeatures(model)
        trainer.test(embedder, images, verbose=False)
        features = embedder.embedded.embeddings["raw"].to(ranking_device(trainer.strategy.root_device))
        table = images.table.select_evaluated(images.tested_on)
        by_cosine = replace(build_metric_config(config, table), curvature=0.0)
        metrics = Evaluator(table, by_cosine)(features, embedder.embedded.rows)
        rank_zero_only(folder.write_raw_metrics)(metrics, configuration)
    rank_zero_only(print_raw_metrics)(metrics)
    return {f"raw/{name}": value for name, value in metrics.items()}


def store_fixed_neighbors(config: DictConfig, learner: MetricLearner, images: DataModule, path: Path) -> None:
    """Write the nearest neighbours of each test image by the model as it is, unless the file holds them.

    Raises:
        InputError: if the test isn't of one split that is its own gallery.
    """
    count, table = config.evaluation.fixed_neighbors, images.table.select_evaluated("test")
    if len(np.unique(table.split)) > 1 or (table.benchmark != EVERY_LEVEL).any():
        raise InputError(f"evaluation.fixed_neighbors={count}: {config.dataset.name} has more than one list to search")
    if path.exists():
        FixedNeighbors.read(path)  # an error about damage comes before the training
        return
    trainer = loop.build_testing_trainer(config)
    images.tested_on = "test"
    trainer.test(learner, images, verbose=False)
    embeddings = learner.embedded.embeddings[ALL_HEADS].to(ranking_device(trainer.strategy.root_device))
    neighbors = nearest_neighbors(embeddings, count)[1]
    rank_zero_only(FixedNeighbors(learner.embedded.rows.numpy(), neighbors.numpy()).write)(path)
