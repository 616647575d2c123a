"""Builds the objects that a configuration names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hydra.utils import get_class, instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import nn

from dml.data.cache import CacheFolder
from dml.data.copies import number_contents
from dml.data.table import ImageTable, hold_out_classes, load
from dml.data.transforms import Crops, Pipeline, and_mirrored
from dml.evaluation.judge import Judge
from dml.evaluation.metric_names import MetricName
from dml.losses.csl import CSLLoss
from dml.losses.proxies import check_beginning
from dml.models.recurrent import RecurrentModel
from dml.ops.errors import InputError
from dml.run import length
from dml.run.hardware import compile_settings, loader_settings
from dml.run.head_sets import concatenated_heads
from dml.training.data import DataModule, EvaluationData, LoaderSettings
from dml.training.embedding import AnyModel, ModelEmbedder
from dml.training.gradient_cache import check_chunks
from dml.training.module import MetricLearner
from dml.training.recurrent import RecurrentEmbedder, RecurrentLearner

CROPS = {5: "torchvision.transforms.v2.FiveCrop", 10: "torchvision.transforms.v2.TenCrop"}


def table(config: DictConfig) -> ImageTable:
    """The data set, its counts checked, the asked fold of its training classes held out as ``val``."""
    images = _read(config.dataset)
    return number_contents(images, cache_folder(config)) if compares_contents(config) else images


def _read(dataset: DictConfig) -> ImageTable:
    whole = load(
        instantiate(dataset.reader),
        dataset.root,
        name=dataset.name,
        counts=dataset.counts,
        disjoint=dataset.disjoint,
        verify=dataset.verify,
    )
    return hold_out_classes(whole, folds=dataset.folds, fold=dataset.fold) if dataset.folds else whole


def other_labels(config: DictConfig, images: ImageTable) -> dict[str, ImageTable]:
    """The test images with the labels that ``evaluation.other_labels`` gives them, by its names.

    Raises:
        InputError: if a data set there has other test images.
    """
    tested, tables = images.evaluated("test"), {}
    for name, dataset in config.evaluation.other_labels.items():
        if dataset is None:
            continue
        tables[name] = _read(dataset).evaluated("test")
        if not np.array_equal(tables[name].paths, tested.paths):
            raise InputError(
                f"evaluation.other_labels.{name}: {dataset.name} has {len(tables[name])} test images, which aren't the "
                f"{len(tested)} of {config.dataset.name}"
            )
    return tables


def cache_folder(config: DictConfig) -> CacheFolder | None:
    """Where the data set's caches are, if anywhere."""
    return CacheFolder.of(config.data.cache, config.dataset.root, config.dataset.name)


def compares_contents(config: DictConfig) -> bool:
    """Whether queries are found in their gallery by their files' contents."""
    return bool(config.dataset.get("queries_in_gallery")) and config.evaluation.exclude is None


def data(config: DictConfig, images: ImageTable) -> DataModule:
    """The loaders of a table."""
    return DataModule(
        images,
        train_transform=instantiate(config.transform.train),
        sampler=instantiate(config.sampler),
        validated_on="test" if selection(config, images) == "test" else "val",
        seed=config.seed,
        **_evaluated(config),
    )


def evaluation_data(config: DictConfig, images: ImageTable) -> EvaluationData:
    """The loader of a table's test, which takes no training images and no sampler."""
    return EvaluationData(images, **_evaluated(config))


def _evaluated(config: DictConfig) -> dict[str, Any]:
    """What training and testing have in common of a table's loaders."""
    return {
        "test_transform": instantiate(config.transform.test),
        "crops_transform": crops_transform(config),
        "settings": LoaderSettings(**loader_settings(config)),
        "cache": cache_folder(config),
    }


def crops_transform(config: DictConfig) -> Pipeline | None:
    """The test's transform if it takes several views of each image: ``transform.test`` with ``evaluation.crops``.

    Raises:
        InputError: for a number of views that there is none of, or crops that have no place in the transform.
    """
    crops, plain = config.evaluation.crops, instantiate(config.transform.test)
    if crops == 1:
        return None
    steps = plain.steps if isinstance(plain, Pipeline) else (plain,)
    if crops == 2:
        return Pipeline([*steps, Crops(and_mirrored)])
    if crops not in CROPS:
        raise InputError(f"evaluation.crops={crops}: 1, 2, 5 or 10 views of each image")
    last: Any = steps[-1]
    center_crop: Any = get_class("torchvision.transforms.v2.CenterCrop")
    if not isinstance(last, center_crop):
        raise InputError(
            f"evaluation.crops={crops}: transform.test ends with {type(last).__name__}, not with a CenterCrop that "
            "they could replace; evaluation.crops=2, the image and its mirror image, would do"
        )
    return Pipeline([*steps[:-1], Crops(instantiate({"_target_": CROPS[crops], "size": last.size}))])


def selection(config: DictConfig, images: ImageTable) -> str:
    """What chooses the checkpoint that is tested: "val", the "last" one, or "test" itself.

    Without a validation split the last one stands in for the best of it.

    Raises:
        InputError: for anything else.
    """
    asked: str = config.evaluation.selection
    if asked not in ("val", "last", "test"):
        raise InputError(f"evaluation.selection={asked}: val, last or test")
    return "last" if asked == "val" and not len(images.rows("val")) else asked


def model(config: DictConfig) -> AnyModel:
    """The backbone with its heads, and what reads its neighbourhoods if that is asked for."""
    built: AnyModel = instantiate(config.model)
    if config.recurrent is not None:
        built = instantiate(config.recurrent)(built, instantiate(config.model))
    return built


def embedder(config: DictConfig, embedding_model: AnyModel) -> ModelEmbedder:
    """What embeds a split with a model, without a loss or an optimizer."""
    kind = RecurrentEmbedder if isinstance(embedding_model, RecurrentModel) else ModelEmbedder
    return kind(embedding_model, concatenated_heads(config))


def losses(config: DictConfig, embed_dims: Mapping[str, int], labels: NDArray[np.int64]) -> dict[str, nn.Module]:
    """For each head its own loss; ``num_classes: ???`` and ``embedding_dim: ???`` in its YAML are filled in.

    Args:
        config: the configuration.
        embed_dims: the heads and their sizes.
        labels: (N, L), of the training images; below an `AtLevel` its level's number of classes counts. Losses that
            use the hierarchy of the classes learn it from them.
    """
    num_classes = (labels.max(axis=0) + 1).tolist()
    built = {}
    for head, size in embed_dims.items():
        own = config.loss.copy()
        _fill_in(own, num_classes, size)
        built[head] = instantiate(own)
        for part in built[head].modules():
            if isinstance(part, CSLLoss):
                part.learn(torch.from_numpy(labels))
    return built


def _fill_in(node: DictConfig, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> None:
    level = node.get("level", level)
    known = {"num_classes": num_classes[level], "embedding_dim": embedding_dim}
    for key in node:
        if OmegaConf.is_missing(node, key):
            node[key] = known.get(str(key), "???")
        elif OmegaConf.is_dict(node[key]):
            _fill_in(node[key], num_classes, embedding_dim, level)


def learner(config: DictConfig, images: DataModule, embedding_model: AnyModel) -> MetricLearner:
    """The model with its losses, optimizer and schedule."""
    head_losses = losses(config, embedding_model.embed_dims, images.train_table.labels)
    _check_pairs(images, head_losses)
    check_beginning(config.proxies, head_losses.values())
    check_chunks(embedding_model, config.gradient_cache)
    intervals = length.pace(config, len(images.sampler))
    kind = RecurrentLearner if isinstance(embedding_model, RecurrentModel) else MetricLearner
    return kind(
        embedding_model,
        head_losses,
        optimizer=instantiate(config.optimizer),
        schedule=instantiate(length.schedule(config, intervals)),
        evaluate=judge(config, images.table.evaluated(images.validated_on), validation=True),
        validated_on=images.validated_on,
        monitor=config.checkpoints.monitor,
        head_sets=concatenated_heads(config, config.checkpoints.monitor),
        pace=intervals,
        gradient_cache=config.gradient_cache,
        compiled=compile_settings(config),
    )


def _check_pairs(images: DataModule, head_losses: Mapping[str, nn.Module]) -> None:
    loss = next(iter(head_losses.values()))
    compares = any(getattr(part, "needs_positives", False) for part in loss.modules())
    if compares and getattr(images.sampler, "images_per_class", 2) < 2:
        raise InputError(
            f"sampler.images_per_class=1: {type(loss).__name__} compares images of one class and needs at least 2"
        )


def judge(config: DictConfig, part: ImageTable, *, validation: bool = False) -> Judge:
    """What computes the metrics of the table's part: those of the test, or recall@K and `checkpoints.monitor` alone.

    Raises:
        InputError: if ``evaluation.level_weights`` lacks a level.
    """
    settings = config.evaluation
    weights = settings.level_weights
    if weights is not None and len(weights) != len(part.levels):
        raise InputError(
            f"evaluation.level_weights={list(weights)}: {len(weights)} weights for the {len(part.levels)} levels "
            f"{', '.join(part.levels)}"
        )
    if settings.exclude not in (None, "nearest"):
        raise InputError(f"evaluation.exclude={settings.exclude}: must be nearest or null")
    has_gallery = bool(len(part.rows("gallery")))
    metrics, recall_at = _validated_metrics(config) if validation else (settings.metrics, settings.recall_at)
    return Judge(
        part,
        metrics=tuple(metrics),
        recall_at=tuple(recall_at),
        alpha=settings.alpha,
        count_query=settings.count_query,
        level_weights=weights,
        # a gallery that doesn't hold the queries keeps all its items
        exclude_nearest=bool(settings.exclude and (not has_gallery or config.dataset.get("queries_in_gallery"))),
        clustering=settings.clustering or validation,  # of a validation only if one of nmi, ami and f1 is monitored
    )


def _validated_metrics(config: DictConfig) -> tuple[list[str], list[int]]:
    """The metrics and the k of recall@k that a validation computes: recall, and what ``checkpoints.monitor`` names."""
    monitored, recall_at = MetricName.parse(config.checkpoints.monitor), config.evaluation.recall_at
    ks = [*recall_at, *([monitored.k] if monitored.k else [])]
    return list(dict.fromkeys(["recall", monitored.family])), list(dict.fromkeys(ks))
