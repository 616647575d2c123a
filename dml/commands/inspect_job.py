"""The job of ``dml inspect``: show what a data set holds, and what networks find in it before any training.

It is above `dml.run`, beside the other commands that compose configurations of their own: one for each backbone.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from dml.commands.error_lines import explain
from dml.data.cache import CacheFolder
from dml.data.limits import ImageLimits
from dml.data.prepared_files import hold_preparation_lock
from dml.data.split_overview import describe_copies, make_overview_table, summarize_splits
from dml.data.subsets import draw_share_of_classes
from dml.data.table import ImageTable
from dml.data.verification import CheckedImage, check_images, write_table
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric_table import metric_table
from dml.evaluation.query_check import check_queries
from dml.evaluation.raw_comparison import Metrics, describe_best, evaluate_projections
from dml.evaluation.table_pictures import write_contact_sheets
from dml.models.embedding import EmbeddingModel
from dml.ops.console import console, progress_bar
from dml.ops.errors import InputError, nearest
from dml.ops.escaping import in_markup
from dml.ops.overrides import key_of
from dml.ops.run_folder import RunFolder
from dml.run.builders import build_evaluation_data, build_table
from dml.run.evaluators import build_metric_config, choose_final_split
from dml.run.loop import build_testing_trainer
from dml.run.prepare_job import make_cache_folder
from dml.training.embedders import RawFeatures
from dml.training.hardware import uses_cuda
from dml.training.raw_feature_cache import load_or_compute

METRICS = ("recall@1", "map@r")


def inspect(config: DictConfig, _folder: RunFolder, overrides: list[str]) -> dict[str, Metrics]:
    """Print what a data set holds, draw its contact sheets, and test the features of backbones.

    Returns:
        The metrics on the split that a training is tested on at its end, by backbone and projection.

    Raises:
        InputError: if an option can't be used, a backbone is unknown or none has weights, the data set has a fault, no
            query has a positive, or another process prepares the data set.
    """
    model_configs = compose_models(config, overrides)
    if config.components is not None and not (isinstance(config.components, int) and config.components > 0):
        raise InputError(f"components={config.components}: a whole number above 0, or null")
    whole_table = build_table(config)
    table = draw_share_of_classes(whole_table, config.max_images, config.seed)
    if len(table) < len(whole_table):
        number, total = len(table), len(whole_table)
        console.print(
            f"[bold]part[/]     {number:,} of {total:,} images, the same share of each class, at least 2 (max_images)"
        )
    folder = make_cache_folder(config)
    with hold_preparation_lock(folder.path):
        images = _check_images(config, table, folder)
        if len(table) == len(whole_table):
            write_table(folder, table, images)
        console.print(make_overview_table(summarize_splits(table, images)))
        for line in describe_copies(table, images):
            _warn(line)
        readable = [not images[path].error for path in table.paths.tolist()]
        if not all(readable):
            _warn("missing and unreadable files are left out below; dml prepare lists them")
        table = table.take(np.flatnonzero(readable).astype(np.int64))
        write_contact_sheets(table, folder.path, ImageLimits.from_settings(config.data), **config.sheet)
        results = _test_backbones(config, table, folder, model_configs)
    console.print(f"[bold]written[/]  {in_markup(folder.path)}: sheet_*.png, features-*.npz")
    return results


def compose_models(config: DictConfig, overrides: list[str]) -> dict[str, DictConfig]:
    """Compose the model of each entry of ``backbones`` -> {name: configuration of the model}.

    The chosen model keeps its own values, such as ``model.backbone.weights``; the others are as in conf/model.

    Raises:
        InputError: if an entry isn't the name of a file in conf/model.
    """
    chosen = HydraConfig.get().runtime.choices.get("model")
    known = GlobalHydra.instance().config_loader().get_group_options("model")
    other_overrides = [
        override for override in overrides if key_of(override).split(".")[0] not in ("model", "backbones")
    ]
    names = [chosen] if config.backbones is None else config.backbones
    if isinstance(names, str) or not names:
        raise InputError(f"backbones={names}: a list of models, such as [tf_efficientnet_lite0,resnet18], or null")
    model_configs = {}
    for name in map(str, names):
        if name not in known:
            raise InputError(f"backbones={name}: no such model{nearest(name, known)}")
        composed = config if name == chosen else compose("inspect", overrides=[*other_overrides, f"model={name}"])
        model_configs[name] = composed.model
    return model_configs


def _check_images(config: DictConfig, table: ImageTable, folder: CacheFolder) -> dict[str, CheckedImage]:
    """Read and decode each image once; ``dml prepare`` and later calls use the results."""
    with progress_bar("verified", len({*table.paths.tolist()})) as advance:
        return check_images(
            table,
            folder,
            processes=config.processes or os.cpu_count() or 1,
            advance=advance,
            warn=_warn,
            limits=ImageLimits.from_settings(config.data),
        )


def _test_backbones(
    config: DictConfig, table: ImageTable, folder: CacheFolder, model_configs: Mapping[str, DictConfig]
) -> dict[str, Metrics]:
    """Print the metrics of each backbone's features, and what they mean; a backbone without weights is left out."""
    tested = table.select_evaluated(split := choose_final_split(table))
    check_queries(tested)
    evaluator = _make_evaluator(config, tested)
    used_rows = np.concatenate([table.rows("train"), np.flatnonzero(np.isin(table.split, np.unique(tested.split)))])
    used, num_training = table.take(used_rows.astype(np.int64)), len(table.rows("train"))
    size = config.components or _count_dimensions(config.model)
    results: dict[str, Metrics] = {}
    errors: list[Exception] = []
    for name, model_config in model_configs.items():
        try:
            model = _build_model(model_config, config.seed)
        except (InputError, InstantiationException) as error:  # often weights that can't be had
            if (line := explain(error)) is None:
                raise
            _warn(f"backbone {name} is left out: {line}")
            errors.append(error)
            continue
        features = _embed(config, model_config, model, used, folder)
        projections = evaluate_projections(features[:num_training], features[num_training:], evaluator, size)
        results |= {f"{name}, {projection}": metrics for projection, metrics in projections.items()}
    if not results:
        raise errors[0]
    title = f"features before any training, on the {split} split"
    console.print(metric_table(results, levels=table.levels, metrics=METRICS, title=title))
    verdict = describe_best(results, len(evaluator.benchmark_lists[0].queries), tested.levels)
    console.print(in_markup(verdict), soft_wrap=False)
    return results


def _make_evaluator(config: DictConfig, tested: ImageTable) -> Evaluator:
    """Make the evaluator of recall@1 and MAP@R by cosine; what a ranking excludes is as in a test."""
    metric_config = build_metric_config(config, tested)
    shown = replace(metric_config, metrics=("recall", "map@r"), recall_at=(1,), clustering=False, curvature=0.0)
    return Evaluator(tested, shown)


def _count_dimensions(model_config: DictConfig) -> int:
    """Return the size of a model's concatenated embeddings, without its pretrained weights."""
    without_weights = model_config.copy()
    if "weights" in without_weights.backbone:
        without_weights.backbone.weights = None
    return sum(_build_model(without_weights, seed=0).embed_dims.values())


def _build_model(model_config: DictConfig, seed: int) -> EmbeddingModel:
    """Build a model, whose random weights are the same each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model: EmbeddingModel = instantiate(model_config)
    return model


def _embed(
    config: DictConfig, model_config: DictConfig, model: EmbeddingModel, used: ImageTable, folder: CacheFolder
) -> Tensor:
    """Return the L2-normalised features (N, F) of images, as the test before a training computes them."""
    backbone: Any = OmegaConf.to_container(model_config.backbone, resolve=True)
    transform: Any = OmegaConf.to_container(config.transform.test, resolve=True)
    settings = {"backbone": backbone, "transform": transform, "crops": config.evaluation.crops}
    settings["precision"] = config.trainer.precision
    return load_or_compute(
        used,
        folder,
        model.backbone,
        settings,
        compute=_make_embedding_function(config, model),
        warn=_warn,
    )


def _make_embedding_function(config: DictConfig, model: EmbeddingModel) -> Callable[[ImageTable], Tensor]:
    def compute(images: ImageTable) -> Tensor:
        reading = config.copy()
        reading.data.on_corrupt = "raise"  # what can't be read was left out before
        if reading.data.num_workers == "auto" and not uses_cuda(config.trainer.accelerator):
            reading.data.num_workers = os.cpu_count() or 1  # large photographs take longer to decode than to embed
        trainer = build_testing_trainer(config, devices=1, num_nodes=1, strategy="auto")
        embedder = RawFeatures(model)
        trainer.test(embedder, build_evaluation_data(reading, images), verbose=False)
        return embedder.embedded.embeddings["raw"]

    return compute


def _warn(line: str) -> None:
    console.print(f"[bold red]warning[/]  {in_markup(line)}")
