"""Which of the arguments of Lightning's Trainer a configuration may set."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError

OWNED = {
    "barebones": "checkpoints.every_n_steps, trainer.log_every_n_steps and evaluation.raw=false save time",
    "default_root_dir": "hydra.run.dir=FOLDER is where a run is written",
    "enable_autolog_hparams": "the run folder holds the whole configuration",
    "enable_checkpointing": "checkpoints.* says when checkpoints are written; a run always has its last",
    "fast_dev_run": "trainer.max_steps=2 trainer.val_check_interval=1 tries a run out",
    "limit_predict_batches": "nothing is predicted; trainer.limit_test_batches shortens the test",
    "limit_train_batches": "trainer.max_steps or trainer.max_epochs ends a run",
    "logger": "logger=csv, tensorboard or wandb chooses the loggers",
    "min_epochs": "trainer.min_steps counts in steps, as the training loop does",
    "model_registry": "checkpoints.* says which checkpoints a run folder holds",
    "num_sanity_val_steps": "evaluation.raw=true tests the backbone before training",
    "overfit_batches": "a data set of a few images does that, such as dataset=folder dataset.root=FOLDER",
    "reload_dataloaders_every_n_epochs": "stored.every_n_steps is when a sampler learns from new embeddings",
    "use_distributed_sampler": "each process gets its share of every batch anyway",
}
"""The arguments that dml sets itself, each with what to use instead."""


def refusal(argument: str) -> str | None:
    """The line that refuses an argument; None for one that may be set, or that the Trainer doesn't have."""
    return f"trainer.{argument}: dml sets it itself; {OWNED[argument]}" if argument in OWNED else None


def check_arguments(trainer: DictConfig) -> None:
    """Refuse the arguments that dml sets itself.

    Raises:
        InputError: for the first of them.
    """
    for argument in trainer:
        if line := refusal(str(argument)):
            raise InputError(line)


def unless(value: Any, default: Any) -> Any:
    """The resolver ``${unless:VALUE,DEFAULT}``: null where there is a value, else the default."""
    return default if value is None else None


OmegaConf.register_new_resolver("unless", unless, replace=True)
