"""The objects that a configuration from a file may name under ``_target_``.

Building a configuration calls the objects that it names with the arguments that it contains. A file from an unknown
source could thereby run any code: ``_target_: torch.load`` runs a pickle. So only known objects are allowed, and each
only in the part of a configuration in which it has a use: a data set's reader is no part of a model. No package is
known as a whole.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import isfunction
from typing import Any, NamedTuple

TARGET = "_target_"

_READER = "dml.data.readers.*.read"
_GIVEN = "dml.run.given.take"  # it returns what the user's own Python gave to dml.train or dml.load
_LIGHTNINGS_CALLBACKS = tuple(
    f"pytorch_lightning.callbacks.{name}"
    for name in ("DeviceStatsMonitor", "EarlyStopping", "LearningRateMonitor", "Timer")
)

KNOWN = {
    "adapter": ("dml.models.adapters.*",),
    "dataset": (_READER, "dml.run.given.take_table"),
    "distill": ("dml.losses.*.*",),
    "evaluation": ("dml.evaluation.Metric", _READER),
    "logger": (
        "dml.training.loggers.RunFolderWandbLogger",
        "pytorch_lightning.loggers.CSVLogger",
        "pytorch_lightning.loggers.TensorBoardLogger",
        "pytorch_lightning.loggers.WandbLogger",
    ),
    "loss": (
        _GIVEN,
        "dml.losses.*.*",
        "dml.ops.relevance.*",
        "pytorch_metric_learning.distances.*",
        "pytorch_metric_learning.losses.*",
        "pytorch_metric_learning.miners.*",
        "pytorch_metric_learning.reducers.*",
        "pytorch_metric_learning.regularizers.*",
        "torch.nn.*",
    ),
    "model": (
        _GIVEN,
        "dml.models.backbone.Backbone",
        "dml.models.embedding.*",
        "dml.models.heads.*",
        "dml.models.networks.*",
        "dml.models.small_cnn.*",
        "torch.nn.*",
    ),
    "optimizer": (_GIVEN, "dml.training.optimizers.optimizer_by_role", "torch.optim.*"),
    "recurrent": ("dml.models.recurrent.*",),
    "sampler": (_GIVEN, "dml.samplers.*.*"),
    "scheduler": ("torch.optim.lr_scheduler.*",),
    "trainer": (
        "datetime.timedelta",
        "dml.training.hardware.slurm",
        "pytorch_lightning.Trainer",
        *_LIGHTNINGS_CALLBACKS,
        "pytorch_lightning.strategies.DDPStrategy",
    ),
    "transform": (
        _GIVEN,
        "dml.data.transforms.*",
        "torchvision.transforms.InterpolationMode",
        "torchvision.transforms.v2.*",
    ),
}
"""Names of the objects that each part of a configuration may build; ``*`` stands for one part of a dotted name.

A name that ends in ``*`` is an object of the kind `BASES` in a library's module, and in a module of this project, new
ones included, an object that this module itself defines.
"""

BASES = {
    "pytorch_metric_learning": "torch.nn.Module",
    "torch.nn": "torch.nn.Module",
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "torchvision.transforms.v2": "torch.nn.Module",
}
"""Base class by module, or by package: the known objects of a library are the subclasses of that base class."""

_WANDB = frozenset(
    {"entity", "group", "id", "job_type", "log_model", "name", "notes", "offline", "prefix", "project"}
    | {"resume", "save_dir", "tags", "version"}
)

ARGUMENTS = {
    # Other arguments reach wandb's settings, which can name programs to run and servers to contact.
    "dml.training.loggers.RunFolderWandbLogger": _WANDB,
    "pytorch_lightning.loggers.WandbLogger": _WANDB,
    # Others reach TensorBoard's writer, whose folder and names of files they set.
    "pytorch_lightning.loggers.TensorBoardLogger": {"default_hp_metric", "log_graph", "name", "save_dir", "version"},
    "pytorch_lightning.loggers.CSVLogger": {"flush_logs_every_n_steps", "name", "save_dir", "version"},
    # Others reach PyTorch's DistributedDataParallel, or are objects.
    "pytorch_lightning.strategies.DDPStrategy": {
        *("broadcast_buffers", "bucket_cap_mb", "cluster_environment", "find_unused_parameters"),
        *("gradient_as_bucket_view", "process_group_backend", "static_graph", "timeout"),
    },
    # Others are options of the compiler, which name programs and folders, and backends of other libraries.
    "training.compile": {"dynamic", "fullgraph", "mode"},
}
"""Arguments that a file may set, by the object of which, or the key of the mapping in which, some aren't safe."""

FOLDERS = ("pytorch_lightning.loggers.CSVLogger", "pytorch_lightning.loggers.TensorBoardLogger")
"""Loggers whose ``name`` and ``version`` become folders below ``save_dir``; paths would lead out of it."""


class Unknown(NamedTuple):
    """A value in a configuration that names an unknown object, or sets an argument that isn't safe.

    Args:
        path: dotted key of the value.
        value: name of the object, or the value of the argument.
    """

    path: str
    value: str


def is_known(target: Any, part: str) -> bool:
    """Tell whether a part of a configuration from a file may build an object: it runs no code but known code.

    >>> is_known("dml.losses.rll.RankedListLoss", "loss"), is_known("torch.load", "loss")
    (True, False)

    Args:
        target: value of a ``_target_``, with interpolations resolved.
        part: key at the top of the configuration, such as "loss".
    """
    if not isinstance(target, str):
        return False
    if (pattern := next((name for name in KNOWN.get(part, ()) if _matches(target, name)), None)) is None:
        return False
    if not pattern.endswith("*"):
        return pattern == target or _is_defined_there(target)
    module = target.rpartition(".")[0]
    base = BASES.get(module) or BASES.get(module.partition(".")[0])
    if base is None:
        return _is_defined_there(target)
    named, base_class = import_object(target), import_object(base)
    return isinstance(named, type) and isinstance(base_class, type) and issubclass(named, base_class)


def _matches(target: str, name: str) -> bool:
    return re.fullmatch(re.escape(name).replace(r"\*", r"[A-Za-z]\w*"), target, re.ASCII) is not None


def _is_defined_there(target: str) -> bool:
    """Tell whether a module defines the class or function of a dotted name; what it imports doesn't count."""
    named = import_object(target)
    return (isinstance(named, type) or isfunction(named)) and named.__module__ == target.rpartition(".")[0]


def unknown_targets(config: Any, path: str = "") -> Iterator[Unknown]:
    """Find the values in a configuration that name unknown objects or set arguments that aren't safe.

    >>> list(unknown_targets({"loss": {"_target_": "torch.load"}}))
    [Unknown(path='loss._target_', value='torch.load')]

    A text that is still an interpolation after all were resolved counts too: building would resolve it.
    """
    if isinstance(config, Mapping):
        yield from _unknown_arguments(config, path)
        for key, value in config.items():
            inner = f"{path}.{key}" if path else str(key)
            if key == TARGET and not is_known(value, path.partition(".")[0]):
                yield Unknown(inner, str(value))
            else:
                yield from unknown_targets(value, inner)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from unknown_targets(value, f"{path}.{index}")
    elif isinstance(config, str) and "${" in config:
        yield Unknown(path, config)


def _unknown_arguments(node: Mapping[Any, Any], path: str) -> Iterator[Unknown]:
    """Find the arguments of one object, or the keys of one mapping, that aren't safe."""
    limited = str(node.get(TARGET, path))
    for key, value in node.items() if limited in ARGUMENTS else ():
        leads_out = limited in FOLDERS and key in ("name", "version") and not re.fullmatch(r"[\w-]*", str(value))
        if leads_out or key not in {*ARGUMENTS[limited], TARGET, "_partial_"}:
            yield Unknown(f"{path}.{key}", str(value))


def import_object(path: str) -> Any:
    """Import the object of a dotted path; return None if there is none."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None) if module else None
    except ImportError:
        return None
