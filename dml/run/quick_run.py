"""``quick=true``: a short run on a small part of the data set, which shows that everything works."""

from omegaconf import DictConfig, OmegaConf, open_dict

STEPS = 20
"""The largest number of optimizer steps of each stage."""

CLASSES, IMAGES = 64, 8
"""Classes of each split, and images of each class, that are kept of the data set."""

CLASSES_PER_BATCH = 48
"""The largest number of classes in a batch: a validation fold takes some of `CLASSES`."""


def shorten(config: DictConfig) -> None:
    """Make the training of a stage short, in place: `STEPS` optimizer steps or fewer, and two validations.

    Args:
        config: configuration of the stage.
    """
    trainer, scheduler = config.trainer, config.scheduler
    validates = trainer.val_check_interval is not None or trainer.check_val_every_n_epoch is not None
    with open_dict(config):
        is_given = isinstance(trainer.max_steps, int) and trainer.max_steps > 0
        steps = min(trainer.max_steps, STEPS) if is_given else STEPS
        trainer.max_steps, trainer.max_epochs = steps, None
        trainer.val_check_interval = max(steps // 2, 1) if validates else None
        trainer.check_val_every_n_epoch = None
        scheduler.warmup_steps = 1 if scheduler.warmup_steps or scheduler.get("warmup_epochs") else 0
        scheduler.warmup_epochs = None
        config.training.bank_every_n_steps = None
        if isinstance(classes := OmegaConf.select(config, "sampler.classes_per_batch"), int):
            config.sampler.classes_per_batch = min(classes, CLASSES_PER_BATCH)
