"""Checks, before any training, of what a configuration wants to be evaluated."""

from difflib import get_close_matches

from omegaconf import DictConfig

from dml.data.table import ImageTable
from dml.evaluation.metric_names import HEADS, MetricName, heads_of, metric_names
from dml.ops.errors import InputError
from dml.run import build
from dml.run.head_sets import evaluated_heads, is_subset


def check_evaluation(config: DictConfig, table: ImageTable) -> None:
    """Make sure, before any training, that every metric that is asked for can be computed.

    Args:
        config: configuration of a run, or of one of its stages.
        table: the data set with all its splits.

    Raises:
        InputError: for an unknown metric, set of heads, or `checkpoints.monitor` that no validation has.
    """
    build.judge(config, table)
    tested, heads = evaluated_heads(config), list(config.model.heads)
    part = table.evaluated("test" if build.selection(config, table) == "test" else "val")
    if not len(part):  # nothing is validated, nor monitored
        return
    monitored, recall_at = MetricName.parse(config.checkpoints.monitor), config.evaluation.recall_at
    known = metric_names(part, (*recall_at, *([monitored.k] if monitored.k else [])))
    if monitored.metric not in known or not is_subset(heads_of(monitored.heads), ["", *heads]):
        prefixes = ["", *(f"{HEADS}/{name}/" for name in dict.fromkeys((*heads, *tested)))]
        names = [prefix + name for prefix in prefixes for name in metric_names(part, recall_at)]
        nearest = get_close_matches(config.checkpoints.monitor, names, n=4, cutoff=0.0)
        raise InputError(
            f"checkpoints.monitor={config.checkpoints.monitor}: no metric that a validation has; "
            f"nearest: {', '.join(nearest)}"
        )
