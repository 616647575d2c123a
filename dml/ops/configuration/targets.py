"""The objects that a configuration from a file may name under ``_target_``.

Building a configuration calls the objects that it names with the arguments that it contains. A file from an unknown
source could thereby run any code: ``_target_: torch.load`` runs a pickle. So only known objects are allowed: single
names, subclasses of one base class in a few modules, and objects that this project's modules define. No other package
is known as a whole.
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
        "dml.evaluation.Metric",
        "dml.evaluation.audit.settings.AuditSettings",
        "dml.training.loggers.wandb_logger.RunFolderWandbLogger",
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
"""Base class by module: the known classes of the module are the subclasses of that base class."""

PROJECT_NAMES = re.compile(
    r"""dml\.( (losses|samplers)\.\w+\.[A-Z]\w*
             | data\.readers\.\w+\.read
             | data\.transforms\.[A-Za-z]\w*
             | models\.(adapters|embedding|heads|networks|recurrent|small_cnn)\.[A-Za-z]\w*
             | ops\.relevance\.[A-Za-z]\w*
             | training\.callbacks\.\w+\.([A-Z]\w*|make_\w+)
             )""",
    re.VERBOSE,
)
"""Pattern of the names of this project's objects, which includes losses, readers and callbacks in new files."""

_WANDB = frozenset(
    {"entity", "group", "id", "job_type", "log_model", "name", "notes", "offline", "prefix", "project"}
    | {"resume", "save_dir", "tags", "version"}
)

ARGUMENTS = {
    # Other arguments reach wandb's settings, which can name programs to run and servers to contact.
    "dml.training.loggers.wandb_logger.RunFolderWandbLogger": _WANDB | {"neighbors", "worst_queries"},
    "pytorch_lightning.loggers.WandbLogger": _WANDB,
}
"""Arguments that a file may set, for the objects of which some arguments aren't safe."""


class Unknown(NamedTuple):
    """A value in a configuration that names an unknown object, or sets an argument that isn't safe.

    Args:
        path: dotted key of the value.
        value: name of the object, or the value of the argument.
    """

    path: str
    value: str


def is_known(target: Any) -> bool:
    """Tell whether an object may be built from a file: it runs no code but that of known packages.

    >>> is_known("dml.losses.rll.RankedListLoss"), is_known("torch.load")
    (True, False)

    Args:
        target: value of a ``_target_``, with interpolations resolved.
    """
    if not isinstance(target, str):
        return False
    module = target.rpartition(".")[0]
    if target in NAMES:
        return True
    if module in SUBCLASSES:
        target_class, base = import_object(target), import_object(SUBCLASSES[module])
        return isinstance(target_class, type) and isinstance(base, type) and issubclass(target_class, base)
    if PROJECT_NAMES.fullmatch(target):
        named = import_object(target)
        # The objects that a module imports are attributes of the module too; they don't count.
        return (isinstance(named, type) or isfunction(named)) and named.__module__ == module
    return False


def unknown_targets(config: Any, path: str = "") -> Iterator[Unknown]:
    """Find the values in a configuration that name unknown objects or set arguments that aren't safe.

    >>> list(unknown_targets({"loss": {"_target_": "torch.load"}}))
    [Unknown(path='loss._target_', value='torch.load')]

    Args:
        config: nested mappings, lists and plain values, with interpolations resolved.
        path: dotted key of ``config``.
    """
    if isinstance(config, Mapping):
        yield from _unknown_arguments(config, path)
        for key, value in config.items():
            inner = f"{path}.{key}" if path else str(key)
            # In a stage's changes, keys are dotted: "loss._target_".
            if str(key).rpartition(".")[2] == TARGET and not is_known(value):
                yield Unknown(inner, str(value))
            yield from unknown_targets(value, inner)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from unknown_targets(value, f"{path}.{index}")


def _unknown_arguments(node: Mapping[Any, Any], path: str) -> Iterator[Unknown]:
    """Find the arguments of one object that aren't safe."""
    target = node.get(TARGET)
    if isinstance(target, str) and target in ARGUMENTS:
        safe = ARGUMENTS[target] | {TARGET, "_partial_"}
        yield from (Unknown(f"{path}.{key}", str(node[key])) for key in node if key not in safe)


def import_object(path: str) -> Any:
    """Import the object of a dotted path; return None if there is none."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None) if module else None
    except ImportError:
        return None
