"""An estimate of what a training costs; it is not measured."""

from collections.abc import Mapping

from omegaconf import DictConfig

from dml.ops.errors import InputError
from dml.run.stages import list_stages
from dml.samplers.base import AUTO, AUTO_CLASSES
from dml.training.run_length import AUTO as OPEN_LENGTH
from dml.training.run_length import FEWEST_STEPS, FEWEST_STEPS_BETWEEN

GMACS = {
    "bn_inception": 2.0,
    "googlenet": 1.5,
    "resnet18": 1.8,
    "resnet34": 3.7,
    "resnet50": 4.1,
    "tf_efficientnet_lite0": 0.4,
    "vit_base_patch16_224.augreg_in21k": 17.6,
    "vit_small_patch16_224.augreg_in21k": 4.6,
}
"""Billions of multiplications and additions of one image of 224 x 224 through a backbone."""

GMACS_PER_SECOND = 4700
"""Speed of one V100 in float32: 380 images of ResNet-50 trained a second, each at the price of three passes."""

DYML_IMAGES = {"dyml_vehicle": (343_100, 5_900), "dyml_animal": (407_800, 12_500), "dyml_product": (747_100, 1_500)}
"""Training and test images of the data sets whose YAML doesn't count them, as their paper rounds the numbers."""


class UncountedImagesError(InputError):
    """The number of images of a data set isn't published, so the length of its epochs is unknown."""


def estimate_gpu_hours(config: DictConfig) -> float | None:
    """Estimate the hours of a run on one V100 that loading keeps up with.

    The run consists of the training, the validations, updates of the embedding bank, and the tests before and after it.

    Returns:
        Hours; None if the backbone isn't one of `GMACS`, if ``dataset.counts`` lacks the number of images, or if a
        number that divides others is 0.

    Raises:
        InputError: if the run has no length.
    """
    backbone = _backbone_name(config)
    if backbone not in GMACS:
        return None
    try:
        gmacs = _count_passes(config) * GMACS[backbone] * (config.transform.size / 224) ** 2
    except (UncountedImagesError, ZeroDivisionError):
        return None
    return float(gmacs / GMACS_PER_SECOND / 3600)


def _count_passes(config: DictConfig) -> int:
    """Count the passes of one image through the network in a run."""
    passes = 2 * _count_test_images(config)
    for stage in list_stages(config):
        steps, interval = count_steps(stage.config), _validation_interval(stage.config)
        forward_passes = 2 if stage.config.gradient_cache else 1
        passes += (forward_passes + 2) * steps * _batch_size(stage.config)  # a backward pass costs two forward ones
        passes += steps // interval * _count_validation_images(stage.config) if interval else 0
        if stage.config.stored.every_n_steps:  # the embedding bank is computed again and again
            passes += steps // stage.config.stored.every_n_steps * _count_training_images(stage.config)
    return passes


def count_steps(config: DictConfig) -> int:
    """Count the steps of a training; the length of an epoch follows from the published number of images.

    The length of a run in stages is that of its stages: outside of them, `FEWEST_STEPS` stand for an open length.

    Raises:
        InputError: if the run has no length, or one in epochs of a data set whose images nobody has counted.
    """
    trainer = config.trainer
    if trainer.max_epochs is None:
        steps = FEWEST_STEPS if trainer.max_steps == OPEN_LENGTH else trainer.max_steps
        if not isinstance(steps, int):
            raise InputError(f"trainer.max_steps={steps}: a number of steps, or {OPEN_LENGTH}, or trainer.max_epochs")
        return steps
    return int(trainer.max_epochs * _batches_per_epoch(config) // trainer.accumulate_grad_batches)


def _validation_interval(config: DictConfig) -> int:
    """Return the steps between two validations, 0 without validations."""
    if config.trainer.check_val_every_n_epoch is not None:
        return int(config.trainer.check_val_every_n_epoch * _batches_per_epoch(config))
    interval = config.trainer.val_check_interval
    return FEWEST_STEPS_BETWEEN if interval == OPEN_LENGTH else int(interval or 0)


def _batch_size(config: DictConfig) -> int:
    sampler = config.sampler
    if "batch_size" in sampler:
        return int(sampler.batch_size)
    classes = AUTO_CLASSES if sampler.classes_per_batch == AUTO else sampler.classes_per_batch
    return int(classes * sampler.images_per_class)


def _batches_per_epoch(config: DictConfig) -> int:
    sampler = config.sampler
    if "batches_per_pair" in sampler:
        class_counts = [count for level, count in _published_counts(config, "train").items() if level != "images"]
        if sampler.super_level >= len(class_counts):
            raise UncountedImagesError(f"dataset={config.dataset.name}: dataset.counts lacks the super-classes")
        super_classes = class_counts[sampler.super_level]
        return int(super_classes * (super_classes - 1) // 2 * sampler.batches_per_pair)
    return int(sampler.get("batches_per_epoch") or -(-_count_training_images(config) // _batch_size(config)))


def _count_training_images(config: DictConfig) -> int:
    images, folds = _published_counts(config, "train").get("images"), config.dataset.folds
    images = images or _rounded_counts(config)[0]
    return int(images - images // folds if folds else images)


def _count_validation_images(config: DictConfig) -> int:
    if config.evaluation.selection == "test":
        return _count_test_images(config)
    return _count_training_images(config) // (config.dataset.folds - 1) if config.dataset.folds else 0


def _count_test_images(config: DictConfig) -> int:
    counts = [_published_counts(config, split).get("images", 0) for split in ("test", "query", "gallery")]
    return int(sum(counts) or _rounded_counts(config)[1])


def _published_counts(config: DictConfig, split: str) -> Mapping[str, int]:
    """Return {"images" or the name of a level: number of images or classes} of a split, {} if nothing is published."""
    return (config.dataset.counts or {}).get(split) or {}


def _rounded_counts(config: DictConfig) -> tuple[int, int]:
    name = config.dataset.name
    if name not in DYML_IMAGES:
        raise UncountedImagesError(f"dataset={name}: dataset.counts lacks the number of images")
    return DYML_IMAGES[name]


def _backbone_name(config: DictConfig) -> str:
    backbone = config.model.backbone
    return str(backbone.get("name") or backbone._target_.rpartition(".")[2])
