"""The metrics of a finished run in the loggers beside metrics.csv."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from dml.data.image_files.limits import ImageLimits
from dml.evaluation.per_query import read_queries
from dml.ops.run_folders.run_folder import RunFolder
from dml.training.history import History
from dml.training.loggers.wandb_logger import RunFolderWandbLogger


@rank_zero_only
def log_final_metrics(loggers: Iterable[Logger], metrics: Mapping[str, Any], folder: RunFolder) -> None:
    """Log the metrics of a test, and the retrieved images to Weights & Biases, whose run ends here.

    Args:
        loggers: loggers of the run. metrics.csv gets nothing, as it is a history.
        metrics: contents of metrics.json; they are logged as "test/level0/recall@1" and so on.
        folder: folder of the run, with retrieval.png and per_query.parquet if the configuration names them.
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
                picture if picture.exists() else None,
                read_queries(queries) if queries.exists() else None,
                ImageLimits.from_settings(folder.config.get("data") or {}),
            )
            logger.close()
