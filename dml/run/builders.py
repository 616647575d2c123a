"""The builders of what a configuration describes: the table of images, the model, the losses and the metrics.

None of them needs Lightning, which models in use don't load; `dml.run.loop` builds what trains and tests them.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from dml.data.contents import limit_list_bytes
from dml.data.images import ImageLimits
from dml.data.overview import SplitSummary, assign_content_ids, check_readability, describe_changes, warn_of_copies
from dml.data.prepared.cache import CacheFolder
from dml.data.subsets import take_some_classes
from dml.data.table import TEST_SPLITS, ImageTable, hold_out_classes, list_training_classes, load
from dml.data.transforms import Crops, Pipeline, and_mirrored
from dml.evaluation.metric import Kind, MetricConfig, full_metric_name, list_evaluated_heads
from dml.evaluation.threshold import ThresholdSettings
from dml.losses.compose import AtLevel
from dml.losses.loss_contract import Loss, check_forward, check_module
from dml.losses.matryoshka import MatryoshkaLoss, choose_sizes
from dml.losses.proxies import count_classes
from dml.models.embedding import SIZE_ERRORS, EmbeddingModel
from dml.models.recurrent import AnyModel
from dml.models.weights import add_tensors
from dml.ops.training_protocols import UsesHierarchy
from dml.run.building import build, build_values, import_object
from dml.run.settings import DatasetSettings, Settings, read_settings
from dml.runtime.errors import InputError

QUICK_CLASSES, QUICK_IMAGES = 64, 8
"""Classes of each split, and images of each class, that a quick run keeps of the data set."""

CROPS = {5: "torchvision.transforms.v2.FiveCrop", 10: "torchvision.transforms.v2.TenCrop"}


def build_table(settings: Settings, *, needs_fold: bool = True) -> ImageTable:
    """Read the data set and check its counts; its fold becomes ``val``."""
    images = read_table(settings.dataset, settings.data.max_list_bytes, needs_fold=needs_fold)
    if settings.quick:
        images = take_some_classes(images, classes=QUICK_CLASSES, images=QUICK_IMAGES)
    if not compares_contents(settings):
        return images
    return assign_content_ids(images, find_cache_folder(settings), settings.data.limits)


def read_table(dataset: DatasetSettings, max_list_bytes: int, *, needs_fold: bool = True) -> ImageTable:
    """Read and check a data set, and make the fold of the configuration the validation split."""
    with limit_list_bytes(max_list_bytes):
        images = load(
            build(dataset.reader),
            dataset.root,
            name=dataset.name,
            counts=dataset.counts,
            disjoint=dataset.disjoint,
            verify=dataset.verify,
        )
        if dataset.folds is not None and (needs_fold or len(list_training_classes(images)) >= dataset.folds):
            images = hold_out_classes(images, folds=dataset.folds, fold=dataset.fold)
        return images


def check_same_data(option: str, before: SplitSummary, now: SplitSummary) -> None:
    """Refuse to go on with, or to test, a run whose data has changed since it began."""
    if changes := describe_changes(before, now):
        raise InputError(
            f"{option}: the data has changed since the run began: {'; '.join(changes)}; accept_changed_data=true goes "
            "on with the data as it is now"
        )


def check_readable(settings: Settings, images: ImageTable) -> None:
    """Make sure that all images exist and that some can be decoded; tell of queries that are in their gallery too."""
    folder, limits = find_cache_folder(settings), settings.data.limits
    check_readability(
        images,
        settings.data.check_images,
        on_corrupt=settings.data.on_corrupt,
        prepare_arguments=folder.arguments if folder else "",
        limits=limits,
    )
    if settings.data.check_images and settings.dataset.queries_in_gallery is None:
        warn_of_copies(images.subset("query", "gallery"), limits)


def read_other_labels(settings: Settings, images: ImageTable) -> dict[str, ImageTable]:
    """Read the test images with the labels of each data set in ``evaluation.other_labels`` -> tables by name."""
    tested, tables = images.select_evaluated("test"), {}
    for name, dataset in settings.evaluation.other_labels.items():
        if dataset is None or settings.quick:  # a quick run has other test images
            continue
        tables[name] = read_table(
            read_settings(dataset, DatasetSettings), settings.data.max_list_bytes
        ).select_evaluated("test")
        if not np.array_equal(tables[name].paths, tested.paths):
            raise InputError(
                f"evaluation.other_labels.{name}: {dataset.name} has {len(tables[name])} test images, which aren't the "
                f"{len(tested)} of {settings.dataset.name}"
            )
    return tables


def find_cache_folder(settings: Settings) -> CacheFolder | None:
    """Return the folder of the data set's caches; None without caches."""
    cache, root = settings.data.cache, settings.dataset.root
    if cache is None or (cache == "auto" and root is None):
        return None
    return CacheFolder.from_setting(cache, root, settings.dataset.name)


def compares_contents(settings: Settings) -> bool:
    """Return whether queries are found in their gallery by their files' contents."""
    return bool(settings.dataset.queries_in_gallery) and settings.evaluation.exclude is None


def build_model(settings: Settings) -> AnyModel:
    """Build the backbone with its heads and its ``adapter``, and with ``recurrent`` the network of neighborhoods."""
    built: AnyModel = build_embedding_model(settings)
    if settings.recurrent is not None:
        built = build(settings.recurrent)(built, build_embedding_model(settings))
    return built


def build_embedding_model(settings: Settings) -> EmbeddingModel:
    """Build the backbone with its heads, and change it by ``adapter``."""
    built: EmbeddingModel = build(settings.model)
    if settings.adapter is not None:
        build(settings.adapter)(built)
    return built


@torch.inference_mode()
def use_pooled_features(config: DictConfig) -> None:
    """Let the model of a configuration have one head, which returns the backbone's pooled features."""
    network = build(config.model.backbone).eval()
    try:
        features: Tensor = network.run_blank(config.transform.size)[0]
    except SIZE_ERRORS as error:
        line = " ".join(f"image_size={config.transform.size}: not for the network ({error})".split())
        raise InputError(line) from error
    model = config.model
    with open_dict(model):
        model.heads, model.embed_dim, model.taps = ["H"], int(features.flatten(1).shape[1]), {"H": "pooled"}
        model.head = {"H": {"_target_": "dml.models.heads.RawHead", "_partial_": True}}


def build_crops_transform(settings: Settings) -> Pipeline | None:
    """Build the transform of a test that takes several views of each image, ``evaluation.crops``; else None."""
    crops, plain = settings.evaluation.crops, build(settings.transform.test)
    if crops == 1:
        return None
    steps = plain.steps if isinstance(plain, Pipeline) else (plain,)
    if crops == 2:
        return Pipeline([*steps, Crops(and_mirrored)])
    last: Any = steps[-1]
    if crops not in CROPS or not isinstance(last, import_object("torchvision.transforms.v2.CenterCrop")):
        raise InputError(
            f"evaluation.crops={crops}: 1, 2, 5 or 10 views, and 5 or 10 replace a CenterCrop, but transform.test ends "
            f"with {type(last).__name__}; evaluation.crops=2, the image and its mirror image, would do"
        )
    return Pipeline([*steps[:-1], Crops(import_object(CROPS[crops])(last.size))])


def list_decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a trained model that, beside the weights, decide an image's embedding."""
    model = {key: value for key, value in config["model"].items() if key != "heads"}
    evaluation, limits = config.get("evaluation") or {}, ImageLimits.from_settings(config["data"])
    views = int(evaluation.get("crops", 1))
    more_views = {"views": views} if views > 1 else {}
    background = {"background": limits.color} if limits.color != ImageLimits().color else {}
    test = {"transform": config["transform"]["test"]}
    return {"model": without_weights(model), **test, **more_views, **background}


def without_weights(node: Any) -> Any:
    """Return the settings of a model without the files of weights that its training began with."""
    if isinstance(node, Mapping):
        return {key: None if key == "weights" else without_weights(value) for key, value in node.items()}
    return [without_weights(value) for value in node] if isinstance(node, list) else node


def make_fingerprint(decisive: Mapping[str, Any], model: AnyModel, *, heads: Sequence[str] | None = None) -> str:
    """Return the identifier of a model's vectors by its weights, `list_decisive` and heads (None: chosen)."""
    described = {**decisive, "heads": model.chosen_heads if heads is None else heads}
    digest = hashlib.sha256()
    digest.update(json.dumps(described, sort_keys=True).encode())
    add_tensors(digest, sorted(model.state_dict().items()))
    return digest.hexdigest()[:16]


def build_losses(settings: Settings, embed_dims: Mapping[str, int], labels: NDArray[np.int64]) -> dict[str, nn.Module]:
    """Build a loss for each head -> losses by head.

    The values ``num_classes: ???`` and ``embedding_dim: ???`` are filled in. Of a Matryoshka loss, the inner loss is
    built for each size of a prefix. Losses that use the hierarchy of the classes get it from the labels.

    Args:
        settings: settings of the run, or of one of its stages.
        embed_dims: sizes of the embeddings by head.
        labels: labels (N, L) of the training images; ``num_classes`` is counted at level 0, or at the level of the
            `AtLevel` that the loss is inside of.
    """
    num_classes, values = count_classes(labels), OmegaConf.to_container(settings.loss, resolve=True)
    losses = {}
    for head, size in embed_dims.items():
        losses[head] = build_values(_fill_in(values, num_classes, size), "loss")
        _set_hierarchies(losses[head], torch.from_numpy(labels))
        check_forward(losses[head])
    return losses


def _fill_in(node: Any, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> Any:
    """Return the values of a loss with what the run knows in the place of each ``???``."""
    if isinstance(node, list):
        return [_fill_in(inner, num_classes, embedding_dim, level) for inner in node]
    if not isinstance(node, dict):
        return node
    if _builds(node, AtLevel):
        level = node["level"]
        if level >= len(num_classes):
            raise InputError(f"loss.level={level}: the data set's labels have levels 0 to {len(num_classes) - 1}")
    if _builds(node, MatryoshkaLoss) and isinstance(node["inner"], dict):
        sizes = choose_sizes(node["sizes"], embedding_dim)
        inner = [_fill_in(node["inner"], num_classes, size, level) for size in sizes]
        node = {**node, "sizes": sizes, "inner": inner}
    known = {"num_classes": num_classes[level], "embedding_dim": embedding_dim}
    return {
        key: known.get(key, value) if value == "???" else _fill_in(value, num_classes, embedding_dim, level)
        for key, value in node.items()
    }


def _builds(node: Mapping[str, Any], kind: type[nn.Module]) -> bool:
    """Return whether a node builds an object of a class; other classes may have arguments of the same names."""
    target = import_object(node.get("_target_", ""))
    return isinstance(target, type) and issubclass(target, kind)


def _set_hierarchies(loss: nn.Module, labels: Tensor) -> None:
    """Give the hierarchy of the classes to the parts of a loss that use it; inside `AtLevel` it is that level alone."""
    check_module(loss)
    if isinstance(loss, Loss):
        loss.check_classes(labels)
    if isinstance(loss, UsesHierarchy):
        loss.set_hierarchy(labels)
    for part in loss.children():
        _set_hierarchies(part, labels[:, loss.level, None] if isinstance(loss, AtLevel) else labels)


def build_metric_config(settings: Settings, part: ImageTable) -> MetricConfig:
    """Build the configuration of a test's metrics from those options of ``evaluation`` that are its fields."""
    evaluation = settings.evaluation
    weights = evaluation.level_weights
    if weights is not None and len(weights) != len(part.levels):
        raise InputError(
            f"evaluation.level_weights={list(weights)}: {len(weights)} weights for the {len(part.levels)} levels "
            f"{', '.join(part.levels)}"
        )
    has_gallery = bool(len(part.rows("gallery")))
    chosen = {
        field.name: getattr(evaluation, field.name) for field in fields(MetricConfig) if hasattr(evaluation, field.name)
    }
    values = {
        name: build(value, _convert_="all") if OmegaConf.is_config(value) else value for name, value in chosen.items()
    }
    # a gallery that doesn't hold the queries keeps all its items
    excludes = bool(evaluation.exclude and (not has_gallery or settings.dataset.queries_in_gallery))
    try:
        return MetricConfig(**values, exclude_nearest=excludes)
    except InputError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        raise InputError(f"evaluation.{error}" if name in values else str(error)) from error


def complete_metric_names(config: DictConfig) -> None:
    """Name the finest level in the metrics that choose a checkpoint: recall@1 is level0/recall@1."""
    metrics: Any = OmegaConf.select(config, "evaluation.metrics", default=[])
    entries = [entry for entry in metrics if OmegaConf.is_dict(entry)]
    custom = [entry.get("name") for entry in entries if entry.get("kind") != Kind.HIERARCHY]
    for part in (config, *(changes for changes in config.get("stages", {}).values() if changes)):
        for key in ("checkpoints.monitor", "checkpoints.tie_breaker"):
            if isinstance(name := OmegaConf.select(part, key), str):
                OmegaConf.update(part, key, full_metric_name(name, custom))


def list_tested_heads(settings: Settings) -> list[str]:
    """Return the names of the heads and sets of heads that a test evaluates beside the chosen ones."""
    return list_evaluated_heads(settings.model.heads, settings.evaluation.heads, settings.evaluation.head_sets)


def build_threshold_settings(settings: Settings) -> ThresholdSettings | None:
    """Build the settings of ``evaluation.threshold``; None if a test has no threshold."""
    threshold = settings.evaluation.threshold
    return None if threshold is None else ThresholdSettings(**vars(threshold))


def choose_final_split(table: ImageTable) -> str:
    """Return the split that a run is tested on at its end: "test", or "val" where no class is held out for a test."""
    if len(table.rows(*TEST_SPLITS)):
        return "test"
    _check_held_out("val", table, f"{table.source}: neither a test nor a validation is possible")
    return "val"


def choose_tested_split(settings: Settings, table: ImageTable) -> str:
    """Return the split that a run is tested on at its end: `choose_final_split`, or "val" by ``evaluation.split``."""
    evaluation = settings.evaluation
    if evaluation.split is None:
        return choose_final_split(table)
    if evaluation.selection == "test" or evaluation.fixed_neighbors:
        option = "fixed_neighbors" if evaluation.fixed_neighbors else "selection=test"
        raise InputError(
            f"evaluation.split=val: keeps the test classes unseen, and evaluation.{option} looks at them; leave one out"
        )
    _check_held_out("val", table, "evaluation.split=val")
    return "val"


def choose_selection(settings: Settings, table: ImageTable) -> str:
    """Return what chooses the checkpoint that is tested: "val", the "last" one, or "test" itself.

    Without a validation split the last checkpoint stands in for the best of it.
    """
    selection: str = settings.evaluation.selection
    if selection == "test":
        _check_held_out("test", table, "evaluation.selection=test")
    return "last" if selection == "val" and not len(table.rows("val")) else selection


def _check_held_out(split: str, table: ImageTable, option: str) -> None:
    if not len(table.rows(*(TEST_SPLITS if split == "test" else ["val"]))):
        raise InputError(
            f"{option}: no class is held out as {split}; dataset.folds=5, or a dataset.reader.{split}_fraction such as "
            "0.2, holds some out"
        )
