"""The one door for what a configuration may build, closed by default to all that a file of a stranger's may hold.

A configuration calls the objects that it names under ``_target_`` with the arguments that it holds, so a file could run
any code: ``_target_: torch.load`` runs a pickle. It could also write anywhere: ``data.cache`` names a folder. So what
comes out of a file may name known objects alone, each only in the part in which it has a use, and set the listed
arguments alone where a library takes programs, folders or hosts. Commands open the door to what the user has typed.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from inspect import isfunction
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import OmegaConf

from dml.runtime.errors import InputError
from dml.runtime.text import printable

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
    "optimizer": (_GIVEN, "dml.training.optimizers.optimizer_by_role", "timm.optim.Muon", "torch.optim.*"),
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
"""Names of the objects that each part of a file's configuration may build; ``*`` stands for one part of a dotted name.

A name that ends in ``*`` is an object of the kind `BASES` in a library's module, and in a module of this project, new
ones included, an object that this module itself defines. A logger is none of them: it sends to somebody's account.
"""

BASES = {
    "pytorch_metric_learning": "torch.nn.Module",
    "torch.nn": "torch.nn.Module",
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "torchvision.transforms.v2": "torch.nn.Module",
}
"""Base class by module, or by package: the known objects of a library are the subclasses of that base class."""

ARGUMENTS = {
    "data": {
        *("num_workers", "on_corrupt", "check_images", "max_image_bytes", "max_pixels", "max_list_bytes", "background"),
        *("eval_batch_size", "pin_memory"),
    },
    # others reach PyTorch's DistributedDataParallel, or are objects
    "pytorch_lightning.strategies.DDPStrategy": {
        *("broadcast_buffers", "bucket_cap_mb", "cluster_environment", "find_unused_parameters"),
        *("gradient_as_bucket_view", "process_group_backend", "static_graph", "timeout"),
    },
    # others write into folders, or are objects
    "pytorch_lightning.Trainer": {
        *("accelerator", "accumulate_grad_batches", "benchmark", "callbacks", "check_val_every_n_epoch"),
        *("detect_anomaly", "deterministic", "devices", "enable_model_summary", "enable_progress_bar"),
        *("gradient_clip_algorithm", "gradient_clip_val", "inference_mode", "limit_test_batches", "limit_val_batches"),
        *("limit_train_batches", "log_every_n_steps", "max_epochs", "max_steps", "max_time", "min_epochs", "min_steps"),
        *("num_nodes", "num_sanity_val_steps", "precision", "strategy", "sync_batchnorm", "val_check_interval"),
    },
    # others are options of the compiler, which name programs and folders, and backends of other libraries
    "training.compile": {"dynamic", "fullgraph", "mode"},
}
"""The arguments that a file may set, by the object, or the mapping, that takes others too; null is no argument."""

HARMLESS = {"data.cache": "auto"}
"""Values that a file may give to other arguments."""

_is_open: ContextVar[bool] = ContextVar("is_open", default=False)


class Foreign(NamedTuple):
    """A value that a file may not hold: the name of an unknown object, or an argument that isn't listed."""

    path: str
    value: str


@contextmanager
def trusting(is_trusted: bool) -> Iterator[None]:
    """Let `build` build everything in the ``with`` statement, as the user has typed it or trusts its file."""
    token = _is_open.set(is_trusted)
    try:
        yield
    finally:
        _is_open.reset(token)


def build(config: Any, *arguments: Any, **settings: Any) -> Any:
    """Build the object that a node of a configuration describes, as `hydra.utils.instantiate` does.

    The node is resolved first. Exactly these plain values are checked and then built, so that nothing is built that
    wasn't looked at. Other values than nodes are returned as they are. The settings replace arguments of the node;
    ``_convert_`` is Hydra's.
    """
    if not OmegaConf.is_config(config):
        return config
    path = config._get_full_key(None).replace("[", ".").replace("]", "")
    return build_values(OmegaConf.to_container(config, resolve=True), path, *arguments, **settings)


def build_values(plain: Any, path: str, *arguments: Any, **settings: Any) -> Any:
    """Build the object that plain values at a dotted key describe, as `build` does."""
    check_values(plain, path)
    for key in reversed(path.split(".") if path else []):  # error lines name the whole key
        plain = {key: plain}
    node = OmegaConf.create(plain)
    return instantiate(OmegaConf.select(node, path) if path else node, *arguments, **settings)


def check_values(plain: Any, path: str = "") -> None:
    """Make sure, without `trusting`, that plain values at a dotted key hold nothing that no file may hold."""
    if not _is_open.get() and (foreign := [*find_foreign(plain, path)]):
        raise InputError(f"{describe(foreign)} could run any code, or write anywhere")


def describe(foreign: list[Foreign]) -> str:
    """Format foreign values for an error line, so that a terminal may show them.

    >>> describe([Foreign("model._target_", "os.system")])
    'model._target_=os.system'
    """
    return ", ".join(f"{printable(path)}={printable(value)}" for path, value in foreign)


def find_foreign(values: Any, path: str = "") -> Iterator[Foreign]:
    """Find what a file may not hold among plain values, with interpolations resolved.

    >>> list(find_foreign({"loss": {"_target_": "torch.load"}}))
    [Foreign(path='loss._target_', value='torch.load')]

    A text that is still an interpolation after all were resolved counts too: building would resolve it.
    """
    if isinstance(values, Mapping):
        listed = ARGUMENTS.get(str(values.get(TARGET, path)))
        for key, value in values.items():
            inner = f"{path}.{key}" if path else str(key)
            is_listed = not listed or key in {*listed, TARGET, "_partial_"} or value in (None, HARMLESS.get(inner))
            if not is_listed or (key == TARGET and not is_known(value, path.partition(".")[0])):
                yield Foreign(inner, str(value))
            else:
                yield from find_foreign(value, inner)
    elif isinstance(values, list | tuple):
        for index, value in enumerate(values):
            yield from find_foreign(value, f"{path}.{index}")
    elif isinstance(values, str) and "${" in values:
        yield Foreign(path, values)


def is_known(target: Any, part: str) -> bool:
    """Tell whether a part of a file's configuration may build an object.

    >>> is_known("dml.losses.rll.RankedListLoss", "loss"), is_known("torch.load", "loss")
    (True, False)
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


def import_object(path: str) -> Any:
    """Import the object of a dotted path; return None if there is none."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None) if module else None
    except ImportError:
        return None
