"""Objects that a configuration from a file may name under ``_target_`` without being able to run code of its choice.

Whoever builds a configuration calls what it names, with arguments that it chooses: ``_target_: torch.load`` runs a
pickle. So a package is never known as a whole. Known are single names, classes with a common base in the few modules
that hold nothing else worth building, and what the modules of this project define themselves.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import isfunction
from typing import Any, NamedTuple

TARGET = "_target_"

NAMES = frozenset(
    {
        "datetime.timedelta",
        "dml.run.wandb_logger.RunFolderWandbLogger",
        "dml.training.optimizers.optimizer_by_role",
        "dml.training.processes.slurm",
        "optuna.pruners.MedianPruner",
        "pytorch_lightning.Trainer",
        "pytorch_lightning.callbacks.DeviceStatsMonitor",
        "pytorch_lightning.callbacks.EarlyStopping",
        "pytorch_lightning.callbacks.LearningRateMonitor",
        "pytorch_lightning.callbacks.Timer",
        "pytorch_lightning.loggers.CSVLogger",
        "pytorch_lightning.loggers.TensorBoardLogger",
        "pytorch_lightning.loggers.WandbLogger",
        "pytorch_lightning.strategies.DDPStrategy",
        "torchvision.transforms.InterpolationMode",
    }
)

SUBCLASSES = {
    "pytorch_metric_learning.distances": "torch.nn.Module",
    "pytorch_metric_learning.losses": "torch.nn.Module",
    "pytorch_metric_learning.miners": "torch.nn.Module",
    "pytorch_metric_learning.reducers": "torch.nn.Module",
    "pytorch_metric_learning.regularizers": "torch.nn.Module",
    "torch.nn": "torch.nn.Module",
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "torchvision.transforms.v2": "torch.nn.Module",
}
"""For each module the base of the classes in it that are known."""

PROJECT_NAMES = re.compile(
    r"""dml\.( (losses|samplers)\.\w+\.[A-Z]\w*
             | data\.readers\.\w+\.read
             | data\.transforms\.[A-Za-z]\w*
             | models\.(embedding|heads|networks|recurrent|small_cnn)\.[A-Za-z]\w*
             | ops\.relevance\.[A-Za-z]\w*
             )""",
    re.VERBOSE,
)
"""Names of this project's own objects; a loss or a reader in a new file needs no entry."""

_WANDB = frozenset(
    {"entity", "group", "id", "job_type", "log_model", "name", "notes", "offline", "prefix", "project"}
    | {"resume", "save_dir", "tags", "version"}
)

ARGUMENTS = {
    # their others reach wandb's settings, which name programs and servers
    "dml.run.wandb_logger.RunFolderWandbLogger": _WANDB | {"neighbors", "worst_queries"},
    "pytorch_lightning.loggers.WandbLogger": _WANDB,
}
"""The arguments that a file may give, where not all of them are harmless."""


class Unknown(NamedTuple):
    """A value of a configuration that would build something unknown.

    Args:
        path: the value's dotted key.
        value: the ``_target_``, or an argument that a known one must not take from a file.
    """

    path: str
    value: str


def is_known(target: Any) -> bool:
    """Tell whether building ``target`` runs no code but that of the known packages, whatever its arguments.

    Args:
        target: the value of a ``_target_``, its interpolations resolved.
    """
    if not isinstance(target, str):
        return False
    module, _, name = target.rpartition(".")
    if target in NAMES:
        return True
    if module in SUBCLASSES:
        built, base = _find(module, name), _find(*_split(SUBCLASSES[module]))
        return isinstance(built, type) and isinstance(base, type) and issubclass(built, base)
    if PROJECT_NAMES.fullmatch(target):
        built = _find(module, name)
        # a module's imports are attributes of it as well
        return (isinstance(built, type) or isfunction(built)) and built.__module__ == module
    return False


def unknown_targets(config: Any, path: str = "") -> Iterator[Unknown]:
    """Find what a configuration would build that is not known.

    Args:
        config: nested mappings, lists and plain values, their interpolations resolved.
        path: the dotted key of ``config``, before those that are found.
    """
    if isinstance(config, Mapping):
        yield from _unknown_arguments(config, path)
        for key, value in config.items():
            inner = f"{path}.{key}" if path else str(key)
            # a stage names what it changes by dotted keys
            if str(key).rpartition(".")[2] == TARGET and not is_known(value):
                yield Unknown(inner, str(value))
            yield from unknown_targets(value, inner)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from unknown_targets(value, f"{path}.{index}")


def _unknown_arguments(node: Mapping[Any, Any], path: str) -> Iterator[Unknown]:
    target = node.get(TARGET)
    if isinstance(target, str) and target in ARGUMENTS:
        harmless = ARGUMENTS[target] | {TARGET, "_partial_"}
        yield from (Unknown(f"{path}.{key}", str(node[key])) for key in node if key not in harmless)


def _split(path: str) -> tuple[str, str]:
    module, _, name = path.rpartition(".")
    return module, name


def _find(module: str, name: str) -> Any:
    """The object of that name, None if there is none."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
