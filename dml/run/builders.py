"""The builders of the objects that a configuration names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hydra.utils import get_class, instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from dml.data.cache import CacheFolder
from dml.data.copies import assign_content_ids
from dml.data.limits import ImageLimits, limit_list_bytes
from dml.data.readability import check_readability
from dml.data.subsets import take_first_classes
from dml.data.table import ImageTable, hold_out_classes, load
from dml.data.transforms import Crops, Pipeline, and_mirrored
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.head_sets import list_evaluated_heads, select_joint
from dml.evaluation.metric_names import MetricName
from dml.evaluation.monitor import make_validation_config
from dml.losses.positive_pairs import check_pairs
from dml.losses.proxies import check_beginning
from dml.models.recurrent import RecurrentModel
from dml.ops.errors import InputError
from dml.ops.training_protocols import UsesHierarchy
from dml.run import quick_run
from dml.run.evaluators import build_metric_config, choose_selection, find_ball
from dml.training.data import DataModule, EvaluationData
from dml.training.embedders import AnyModel, ModelEmbedder
from dml.training.gradient_cache import check_chunk_size
from dml.training.hardware import choose_loader_settings, parse_compile
from dml.training.module import MetricLearner
from dml.training.recurrent_learner import RecurrentEmbedder, RecurrentLearner
from dml.training.run_length import count_steps
from dml.training.schedules import SchedulePace

CROPS = {5: "torchvision.transforms.v2.FiveCrop", 10: "torchvision.transforms.v2.TenCrop"}


def build_table(config: DictConfig) -> ImageTable:
    """Read the data set and check its counts; the fold ``dataset.fold`` of the training classes becomes ``val``."""
    images = _read(config.dataset, config.data.max_list_bytes)
    if config.get("quick"):
        images = take_first_classes(images, classes=quick_run.CLASSES, images=quick_run.IMAGES)
    if not compares_contents(config):
        return images
    return assign_content_ids(images, find_cache_folder(config), ImageLimits.from_settings(config.data))


def _read(dataset: DictConfig, max_list_bytes: int) -> ImageTable:
    with limit_list_bytes(max_list_bytes):
        images = load(
            instantiate(dataset.reader),
            dataset.root,
            name=dataset.name,
            counts=dataset.counts,
            disjoint=dataset.disjoint,
            verify=dataset.verify,
        )
    return hold_out_classes(images, folds=dataset.folds, fold=dataset.fold) if dataset.folds else images


def check_readable(config: DictConfig, images: ImageTable) -> None:
    """Make sure that all image files exist and that some can be decoded, see `dml.data.readability`."""
    folder = find_cache_folder(config)
    check_readability(
        images,
        config.data.get("check_images", 0),  # configurations of older versions lack it
        on_corrupt=config.data.on_corrupt,
        prepare_arguments=folder.arguments if folder else "",
        limits=ImageLimits.from_settings(config.data),
    )


def read_other_labels(config: DictConfig, images: ImageTable) -> dict[str, ImageTable]:
    """Read the test images with other labels: those of each data set in ``evaluation.other_labels``, by its name.

    Raises:
        InputError: if a data set there has other test images.
    """
    tested, tables = images.select_evaluated("test"), {}
    for name, dataset in config.evaluation.other_labels.items():
        if dataset is None or config.get("quick"):  # a quick run has other test images
            continue
        tables[name] = _read(dataset, config.data.max_list_bytes).select_evaluated("test")
        if not np.array_equal(tables[name].paths, tested.paths):
            raise InputError(
                f"evaluation.other_labels.{name}: {dataset.name} has {len(tables[name])} test images, which aren't the "
                f"{len(tested)} of {config.dataset.name}"
            )
    return tables


def find_cache_folder(config: DictConfig) -> CacheFolder | None:
    """Return the folder of the data set's caches; None without caches."""
    return CacheFolder.from_setting(config.data.cache, config.dataset.root, config.dataset.name)


def compares_contents(config: DictConfig) -> bool:
    """Return whether queries are found in their gallery by their files' contents."""
    return bool(config.dataset.get("queries_in_gallery")) and config.evaluation.exclude is None


def build_data(config: DictConfig, images: ImageTable) -> DataModule:
    """Build the loaders of a table."""
    return DataModule(
        images,
        train_transform=instantiate(config.transform.train),
        sampler=instantiate(config.sampler),
        validated_on="test" if choose_selection(config, images) == "test" else "val",
        seed=config.seed,
        **_build_loader_arguments(config),
    )


def build_evaluation_data(config: DictConfig, images: ImageTable) -> EvaluationData:
    """Build the loader of a table's test, which takes no training images and no sampler."""
    return EvaluationData(images, **_build_loader_arguments(config))


def _build_loader_arguments(config: DictConfig) -> dict[str, Any]:
    """Return the arguments that the loaders of a training and of a test have in common."""
    return {
        "test_transform": instantiate(config.transform.test),
        "crops_transform": build_crops_transform(config),
        "settings": choose_loader_settings(config.data, config.trainer),
        "cache": find_cache_folder(config),
    }


def build_crops_transform(config: DictConfig) -> Pipeline | None:
    """Build the test's transform if it takes several views of each image: ``transform.test`` with ``evaluation.crops``.

    Raises:
        InputError: if there are no crops of so many views, or the transform has no place for them.
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


def build_model(config: DictConfig) -> AnyModel:
    """Build the backbone with its heads and, with ``recurrent``, the network that reads neighbourhoods."""
    built: AnyModel = instantiate(config.model)
    if config.recurrent is not None:
        built = instantiate(config.recurrent)(built, instantiate(config.model))
    return built


def build_embedder(config: DictConfig, embedding_model: AnyModel) -> ModelEmbedder:
    """Build the module that embeds a split with a model, without a loss or an optimizer."""
    kind = RecurrentEmbedder if isinstance(embedding_model, RecurrentModel) else ModelEmbedder
    embedder = kind(embedding_model, select_joint(list_evaluated_heads(config.model.heads, config.evaluation)))
    embedder.ball = find_ball(config)
    return embedder


def build_losses(config: DictConfig, embed_dims: Mapping[str, int], labels: NDArray[np.int64]) -> dict[str, nn.Module]:
    """Build a loss for each head -> losses by head.

    The values ``num_classes: ???`` and ``embedding_dim: ???`` of the loss are filled in. Losses that use the hierarchy
    of the classes get it from the labels.

    Args:
        config: configuration of the run.
        embed_dims: sizes of the embeddings by head.
        labels: labels (N, L) of the training images; ``num_classes`` is counted at level 0, or at the level of the
            `AtLevel` that the loss is inside of.
    """
    num_classes = (labels.max(axis=0) + 1).tolist()
    built = {}
    for head, size in embed_dims.items():
        loss_config = config.loss.copy()
        _fill_in(loss_config, num_classes, size)
        built[head] = instantiate(loss_config)
        for part in built[head].modules():
            if isinstance(part, UsesHierarchy):
                part.set_hierarchy(torch.from_numpy(labels))
    return built


def _fill_in(node: DictConfig, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> None:
    level = node.get("level", level)
    known = {"num_classes": num_classes[level], "embedding_dim": embedding_dim}
    for key in node:
        if OmegaConf.is_missing(node, key):
            node[key] = known.get(str(key), "???")
        elif OmegaConf.is_dict(node[key]):
            _fill_in(node[key], num_classes, embedding_dim, level)


def build_learner(config: DictConfig, images: DataModule, embedding_model: AnyModel) -> MetricLearner:
    """The model with its losses, optimizer and schedule."""
    head_losses = build_losses(config, embedding_model.embed_dims, images.train_table.labels)
    check_pairs(next(iter(head_losses.values())), getattr(images.sampler, "images_per_class", 2))
    check_beginning(config.proxies, head_losses.values())
    check_chunk_size(embedding_model, config.gradient_cache)
    names = list_evaluated_heads(config.model.heads, config.evaluation)
    validated = images.table.select_evaluated(images.validated_on)
    monitor = config.checkpoints.monitor
    pace = build_pace(config, len(images.sampler))
    kind = RecurrentLearner if isinstance(embedding_model, RecurrentModel) else MetricLearner
    learner = kind(
        embedding_model,
        head_losses,
        optimizer=instantiate(config.optimizer),
        schedule=instantiate(fill_in_schedule(config, pace)),
        evaluate=Evaluator(validated, make_validation_config(build_metric_config(config, validated), monitor)),
        validated_on=images.validated_on,
        monitor=monitor,
        head_sets=select_joint([*names, MetricName.parse(monitor).heads]),
        pace=pace,
        gradient_cache=config.gradient_cache,
        compiled=parse_compile(config.compile),
    )
    learner.ball = find_ball(config)
    return learner


def count_in_steps(config: DictConfig, batches_per_epoch: int) -> None:
    """Replace the epochs in a configuration by steps, see `dml.training.run_length.count_steps`."""
    length = count_steps(config.trainer, config.scheduler, batches_per_epoch)
    with open_dict(config.trainer):
        config.trainer.pop("check_val_every_n_epoch")
    config.trainer.max_epochs = None
    config.trainer.max_steps, config.trainer.val_check_interval = length.max_steps, length.val_check_interval
    config.scheduler.warmup_steps = length.warmup_steps
    if "warmup_epochs" in config.scheduler:
        config.scheduler.warmup_epochs = None


def build_pace(config: DictConfig, batches_per_epoch: int) -> SchedulePace:
    """Build the counter of the intervals of ``scheduler``.

    Raises:
        InputError: if ``scheduler.interval`` is neither step nor epoch.
    """
    return SchedulePace(
        config.scheduler.interval,
        config.scheduler.warmup_steps,
        batches_per_step=config.trainer.accumulate_grad_batches,
        batches_per_epoch=batches_per_epoch,
    )


def fill_in_schedule(config: DictConfig, pace: SchedulePace) -> DictConfig | None:
    """Replace each ``???`` in ``scheduler.schedule`` by the number of intervals from the warm-up to the run's end.

    Raises:
        InputError: if the warm-up leaves no interval.
    """
    if config.scheduler.schedule is None:
        return None
    filled: DictConfig = config.scheduler.schedule.copy()
    for key in filled:
        if OmegaConf.is_missing(filled, key):
            filled[key] = pace.schedule_length(config.trainer.max_steps)
    return filled
