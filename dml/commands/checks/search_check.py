"""The check of a search with Optuna before its first run."""

from omegaconf import DictConfig

from dml.ops.errors import InputError
from dml.run import builders
from dml.run.evaluators import check_evaluation, choose_tested_split, complete_metric_names
from dml.run.stages import list_stages
from dml.run.sweeps import build_pruner, monitored_metric


def check_search(config: DictConfig) -> None:
    """Make sure that the runs of a search validate, that a validation has the metric, and that there is the pruner.

    Args:
        config: configuration of one of the runs.

    Raises:
        InputError: if no run could give the search a value.
    """
    build_pruner(config)
    complete_metric_names(config)
    table = builders.build_table(config)
    choose_tested_split(config, table)
    stages = list_stages(config)
    for stage in stages:
        check_evaluation(stage.config, table)
    trainer, metric = stages[-1].config.trainer, monitored_metric(config)
    if metric.startswith("val/") and not len(table.rows("val")):
        raise InputError(
            f"sweep=optuna: {table.source} has no validation split for {metric}; dataset.folds=5 holds classes out"
        )
    if trainer.val_check_interval is None and trainer.get("check_val_every_n_epoch") is None:
        raise InputError(
            f"sweep=optuna: trainer.val_check_interval=null validates never, and the search optimises {metric}; "
            "give a number of steps"
        )
