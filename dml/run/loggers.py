"""What the loggers beside metrics.csv are told of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from dml.evaluation.per_query import read_queries
from dml.ops.run_folder import RunFolder, without_run_keys
from dml.run.wandb_logger import RunFolderWandbLogger
from dml.training.history import History


def log_configuration(loggers: Iterable[Logger], config: DictConfig) -> None:
    """Log the run's configuration, its interpolations resolved."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    for logger in loggers:
        logger.log_hyperparams(without_run_keys(values))


@rank_zero_only
def log_outcome(loggers: Iterable[Logger], metrics: Mapping[str, Any], folder: RunFolder) -> None:
    """Log the final metrics, to Weights & Biases also what was retrieved, and end its run.

    Args:
        loggers: the run's; metrics.csv is a history, and gets nothing.
        metrics: the contents of metrics.json, which are logged as "test/level0/recall@1" and so on.
        folder: the run's, which holds retrieval.png and per_query.parquet if they were asked for.
    """
    numbers = {
        f"{metrics['split']}/{name}": value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for logger in loggers:
        if not isinstance(logger, History):
            logger.log_metrics(numbers, metrics["step"])
        if isinstance(logger, RunFolderWandbLogger):
            picture, queries = folder.picture_file, folder.queries_file
            logger.log_retrieval(
                picture if picture.exists() else None, read_queries(queries) if queries.exists() else None
            )
            logger.close()
