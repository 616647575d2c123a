"""The builders of the objects that a configuration names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from torch import Tensor, nn

from dml.data.copies import assign_content_ids, warn_of_copies
from dml.data.image_files.limits import limit_list_bytes
from dml.data.prepared.cache import CacheFolder
from dml.data.readability import check_readability
from dml.data.split_overview import SplitSummary, describe_changes
from dml.data.subsets import take_some_classes
from dml.data.table import ImageTable, hold_out_classes, list_training_classes, load
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.monitor import make_further_config, make_validation_config
from dml.evaluation.names import MetricName, list_evaluated_heads, select_joint
from dml.losses.compose import AtLevel, check_pairs
from dml.losses.loss_contract import Loss, check_module
from dml.losses.matryoshka import MatryoshkaLoss, choose_sizes
from dml.losses.proxies import check_class_means, count_classes
from dml.models.recurrent import AnyModel, RecurrentModel
from dml.ops.training_protocols import UsesHierarchy
from dml.run.building import build, import_object
from dml.run.evaluators import build_metric_config, choose_selection
from dml.run.model_builders import build_crops_transform as build_crops_transform
from dml.run.model_builders import build_model as build_model
from dml.run.settings import DatasetSettings, Settings, read_settings
from dml.run.stages import QUICK_CLASSES, QUICK_IMAGES
from dml.runtime.errors import InputError
from dml.training.callbacks.loss_schedule import make_loss_schedule
from dml.training.checkpoints import FrozenWeights
from dml.training.data import DataModule, EvaluationData
from dml.training.embedders import HeadChoice, ModelEmbedder
from dml.training.frozen import FrozenDataModule, FrozenLearner
from dml.training.gradient_cache import check_chunk_size
from dml.training.hardware import check_synchronized, choose_loader_settings, parse_compile
from dml.training.module import MetricLearner
from dml.training.optimizers import SchedulePace
from dml.training.recurrent_learner import RecurrentEmbedder, RecurrentLearner
from dml.training.run_length import count_steps


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
    return CacheFolder.from_setting(settings.data.cache, settings.dataset.root, settings.dataset.name)


def compares_contents(settings: Settings) -> bool:
    """Return whether queries are found in their gallery by their files' contents."""
    return bool(settings.dataset.queries_in_gallery) and settings.evaluation.exclude is None


def build_data(settings: Settings, images: ImageTable) -> DataModule:
    """Build the loaders of a table; with ``training.frozen`` they load head inputs, once it is known where from."""
    kind = FrozenDataModule if settings.training.frozen else DataModule
    return kind(
        images,
        train_transform=build(settings.transform.train),
        sampler=build(settings.sampler),
        validated_on="test" if choose_selection(settings, images) == "test" else "val",
        seed=settings.seed,
        **_build_loader_arguments(settings),
    )


def build_evaluation_data(settings: Settings, images: ImageTable) -> EvaluationData:
    """Build the loader of a table's test, which takes no training images and no sampler."""
    return EvaluationData(images, **_build_loader_arguments(settings))


def _build_loader_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments that the loaders of a training and of a test have in common."""
    return {
        "test_transform": build(settings.transform.test),
        "crops_transform": build_crops_transform(settings),
        "settings": choose_loader_settings(vars(settings.data), settings.trainer),
        "cache": find_cache_folder(settings),
    }


def build_frozen_weights(settings: Settings, embedding_model: AnyModel) -> FrozenWeights | None:
    """Find the frozen weights of a model as it was built, which a checkpoint needn't hold; None without ``adapter``."""
    if settings.adapter is None:
        return None
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(settings.seed + 1)
        return FrozenWeights(embedding_model, build_model(settings))


def build_embedder(settings: Settings, embedding_model: AnyModel) -> ModelEmbedder:
    """Build the module that embeds a split with a model, without a loss or an optimizer."""
    kind = RecurrentEmbedder if isinstance(embedding_model, RecurrentModel) else ModelEmbedder
    return kind(
        embedding_model,
        select_joint(
            list_evaluated_heads(settings.model.heads, settings.evaluation.heads, settings.evaluation.head_sets)
        ),
    )


def build_learner(
    settings: Settings, images: DataModule, embedding_model: AnyModel, add_terms: Callable[..., Any] = dict
) -> MetricLearner:
    """The model with its losses, optimizer and schedule; with ``training.frozen`` its backbone is frozen."""
    if settings.training.frozen:
        embedding_model.backbone.requires_grad_(False).eval()
    labels, embed_dims = images.train_table.labels, embedding_model.embed_dims
    head_losses: dict[str, nn.Module] = add_terms(build_losses(settings, embed_dims, labels))
    sampler, first_loss = images.sampler, next(iter(head_losses.values()))
    check_pairs(first_loss, getattr(sampler, "images_per_class", 2), getattr(sampler, "classes_per_batch", 2))
    if loss_schedule := make_loss_schedule(settings.scheduler.loss):
        loss_schedule.check_losses(head_losses.values())
    if settings.training.proxies == "class_means":
        check_class_means(head_losses, count_classes(labels), embed_dims)
    check_chunk_size(embedding_model, settings.training.gradient_cache)
    if settings.trainer.sync_batchnorm:
        check_synchronized(embedding_model)
    names = list_evaluated_heads(settings.model.heads, settings.evaluation.heads, settings.evaluation.head_sets)
    validated = images.table.select_evaluated(images.validated_on)
    monitor, tie_breaker = settings.checkpoints.monitor, settings.checkpoints.tie_breaker
    monitored, metrics = [name for name in (monitor, tie_breaker) if name], build_metric_config(settings, validated)
    further = make_further_config(settings.evaluation.validation_metrics, metrics, monitored, validated)
    pace = build_pace(settings, len(images.sampler))
    plain_kind: Any = FrozenLearner if settings.training.frozen else MetricLearner
    kind: type[MetricLearner] = RecurrentLearner if isinstance(embedding_model, RecurrentModel) else plain_kind
    return kind(
        embedding_model,
        head_losses,
        optimizer=build(settings.optimizer),
        schedule=build(fill_in_schedule(settings, pace)),
        evaluate=Evaluator(validated, make_validation_config(metrics, *monitored)),
        evaluate_further=Evaluator(validated, further) if further.selected else None,
        validated_on=images.validated_on,
        monitor=monitor,
        head_sets=select_joint([*names, MetricName.parse(monitor).heads]),
        head_choice=build_head_choice(settings),
        pace=pace,
        gradient_cache=settings.training.gradient_cache,
        shard_loss=settings.training.shard_loss,
        compiled=parse_compile(settings.training.compile),
    )


def build_head_choice(settings: Settings) -> HeadChoice | None:
    """Build the choice of ``heads.choose``; None if there is nothing to choose, or no validation split to do it on."""
    chooses = settings.heads.choose and settings.evaluation.selection == "val"
    if not chooses or len(settings.model.heads) < 2:
        return None
    checkpoints = settings.checkpoints
    return HeadChoice([*settings.model.heads], checkpoints.monitor, checkpoints.mode, checkpoints.tie_breaker)


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


def build_pace(settings: Settings, batches_per_epoch: int) -> SchedulePace:
    """Build the counter of the intervals of ``scheduler``."""
    return SchedulePace(
        settings.scheduler.interval,
        settings.scheduler.warmup_steps,
        batches_per_step=settings.trainer.accumulate_grad_batches,
        batches_per_epoch=batches_per_epoch,
    )


def fill_in_schedule(settings: Settings, pace: SchedulePace) -> DictConfig | None:
    """Replace each ``???`` in ``scheduler.schedule`` by the number of intervals from the warm-up to the run's end."""
    if settings.scheduler.schedule is None:
        return None
    filled: DictConfig = settings.scheduler.schedule.copy()
    for key in filled:
        if OmegaConf.is_missing(filled, key):
            filled[key] = pace.schedule_length(settings.trainer.max_steps)
    return filled


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
    num_classes: list[int] = (labels.max(axis=0) + 1).tolist()
    built = {}
    for head, size in embed_dims.items():
        loss_config = settings.loss.copy()
        _fill_in(loss_config, num_classes, size)
        built[head] = build(loss_config)
        _set_hierarchies(built[head], torch.from_numpy(labels))
    return built


def _set_hierarchies(loss: nn.Module, labels: Tensor) -> None:
    """Give the hierarchy of the classes to the parts of a loss that use it; inside `AtLevel` it is that level alone."""
    check_module(loss)
    if isinstance(loss, Loss):
        loss.check_classes(labels)
    if isinstance(loss, UsesHierarchy):
        loss.set_hierarchy(labels)
    for part in loss.children():
        _set_hierarchies(part, labels[:, loss.level, None] if isinstance(loss, AtLevel) else labels)


def _fill_in(node: DictConfig | ListConfig, num_classes: Sequence[int], embedding_dim: int, level: int = 0) -> None:
    if _builds(node, AtLevel):
        level = node.level
        if level >= len(num_classes):
            raise InputError(f"loss.level={level}: the data set's labels have levels 0 to {len(num_classes) - 1}")
    if _builds(node, MatryoshkaLoss) and OmegaConf.is_dict(node.inner):
        _fill_in_prefixes(node, num_classes, embedding_dim, level)
    known = {"num_classes": num_classes[level], "embedding_dim": embedding_dim}
    keys: Any = range(len(node)) if isinstance(node, ListConfig) else [*node]
    for key in keys:
        if OmegaConf.is_missing(node, key):
            node[key] = known.get(str(key), "???")
        elif OmegaConf.is_config(node[key]):
            _fill_in(node[key], num_classes, embedding_dim, level)


def _builds(node: DictConfig | ListConfig, kind: type[nn.Module]) -> TypeGuard[DictConfig]:
    """Return whether a node builds an object of a class; other classes may have arguments of the same names."""
    target = import_object(node._target_) if isinstance(node, DictConfig) and "_target_" in node else None
    return isinstance(target, type) and issubclass(target, kind)


def _fill_in_prefixes(node: DictConfig, num_classes: Sequence[int], embedding_dim: int, level: int) -> None:
    """Replace the inner loss of a Matryoshka loss by a list of losses, one for each size of a prefix."""
    node.sizes = choose_sizes(node.sizes, embedding_dim)
    losses = [node.inner.copy() for _ in node.sizes]
    for loss, size in zip(losses, node.sizes, strict=True):
        _fill_in(loss, num_classes, size, level)
    node.inner = losses
