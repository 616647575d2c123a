"""``quick=true``: a short run on a small part of the data set, which shows that everything works."""

from omegaconf import DictConfig, open_dict

STEPS = 20
"""Optimizer steps of each stage."""

CLASSES, IMAGES = 64, 8
"""Classes of each split, and images of each class, that are kept of the data set."""


def shorten(config: DictConfig) -> None:
    """Make the training of a stage short, in place: `STEPS` optimizer steps and two validations.

    Args:
        config: configuration of the stage.
    """
    trainer, scheduler = config.trainer, config.scheduler
    validates = trainer.val_check_interval is not None or trainer.check_val_every_n_epoch is not None
    with open_dict(config):
        trainer.max_steps, trainer.max_epochs = STEPS, None
        trainer.val_check_interval = STEPS // 2 if validates else None
        trainer.check_val_every_n_epoch = None
        scheduler.warmup_steps = 1 if scheduler.warmup_steps or scheduler.get("warmup_epochs") else 0
        scheduler.warmup_epochs = None
        config.stored.every_n_steps = None
