"""What a training costs, estimated: nobody has measured it."""

from omegaconf import DictConfig

from dml.run.stages import stages

GMACS = {
    "bn_inception": 2.0,
    "googlenet": 1.5,
    "resnet18": 1.8,
    "resnet34": 3.7,
    "resnet50": 4.1,
    "tf_efficientnet_lite0": 0.4,
}
"""Billions of multiplications and additions of one image of 224 x 224 through a backbone."""

GMACS_PER_SECOND = 4700
"""Of one V100 in float32: 380 images of ResNet-50 trained a second, each at the price of three passes."""

IMAGES = {"dyml_vehicle": (343_100, 5_900), "dyml_animal": (407_800, 12_500), "dyml_product": (747_100, 1_500)}
"""Training and test images of the data sets whose YAML doesn't count them, as their paper rounds them."""


def gpu_hours(config: DictConfig) -> float:
    """Hours on one V100, if loading keeps up: training, validations, and the tests before and after."""
    images = 2 * _tested(config)
    for own in stages(config):
        total, interval = steps(own.config), _validation_interval(own.config)
        images += 3 * total * _batch(own.config)
        images += total // interval * _validated(own.config) if interval else 0
    gmacs = GMACS[_backbone(config)] * (config.transform.size / 224) ** 2
    return float(images * gmacs / GMACS_PER_SECOND / 3600)


def steps(config: DictConfig) -> int:
    """How long a training is, epochs counted by the published number of images."""
    trainer = config.trainer
    if trainer.max_epochs is None:
        return int(trainer.max_steps)
    return int(trainer.max_epochs * _batches_per_epoch(config) // trainer.accumulate_grad_batches)


def _validation_interval(config: DictConfig) -> int:
    if config.trainer.check_val_every_n_epoch is not None:
        return int(config.trainer.check_val_every_n_epoch * _batches_per_epoch(config))
    return int(config.trainer.val_check_interval or 0)


def _batch(config: DictConfig) -> int:
    sampler = config.sampler
    return int(sampler.batch_size if "batch_size" in sampler else sampler.classes_per_batch * sampler.images_per_class)


def _batches_per_epoch(config: DictConfig) -> int:
    sampler = config.sampler
    if "batches_per_pair" in sampler:
        counts = [count for level, count in config.dataset.counts.train.items() if level != "images"]
        super_classes = counts[sampler.super_level]
        return int(super_classes * (super_classes - 1) // 2 * sampler.batches_per_pair)
    return int(sampler.get("batches_per_epoch") or -(-_trained(config) // _batch(config)))


def _trained(config: DictConfig) -> int:
    dataset = config.dataset
    images = dataset.counts.train.get("images") or IMAGES[dataset.name][0]
    return int(images - images // dataset.folds if dataset.folds else images)


def _validated(config: DictConfig) -> int:
    if config.evaluation.selection == "test":
        return _tested(config)
    return _trained(config) // (config.dataset.folds - 1) if config.dataset.folds else 0


def _tested(config: DictConfig) -> int:
    counted = [split.images for split in map(config.dataset.counts.get, ("test", "query", "gallery")) if split]
    return int(sum(counted) or IMAGES[config.dataset.name][1])


def _backbone(config: DictConfig) -> str:
    backbone = config.model.backbone
    return str(backbone.get("name") or backbone._target_.rpartition(".")[2])
