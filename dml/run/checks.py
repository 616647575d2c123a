"""The one pass over a composed configuration before a job: what is missing, mistyped or contradictory is told at once.

What Lightning refuses with a clear message is refused here too, since its Trainer can be made without the data: a user
would otherwise read the message after minutes.
"""

import inspect
import logging
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pkgutil import resolve_name
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dml.data.table import ImageTable
from dml.evaluation.items import check_queries, check_validation_classes
from dml.evaluation.metric import MetricConfig
from dml.evaluation.monitor import check_monitor, check_tie_breaker, make_further_config
from dml.run.builders import (
    build_metric_config,
    build_table,
    build_threshold_settings,
    choose_selection,
    choose_tested_split,
    complete_metric_names,
    list_tested_heads,
)
from dml.run.config_folders import CONF, format_value
from dml.run.loop import build_trainer, make_loggers
from dml.run.settings import SETTINGS, TRAINED, Settings, find_group, list_declared, read_settings
from dml.run.stored import Stage, list_stages
from dml.run.sweeps import monitored_metric
from dml.runtime.configuration import flat, is_below
from dml.runtime.errors import InputError, suggest
from dml.training.trainer_arguments import AUTO, COUNTED

logger = logging.getLogger(__name__)

BUILT = ("loss", "model", "optimizer", "sampler", "trainer")
"""The parts of which a run builds an object, so that each needs a ``_target_``."""
FILLED_IN = ("num_classes", "embedding_dim", "teacher_dim")
"""The values of a loss that the run fills in."""
EXAMPLES = {
    "model.backbone.name": "resnet18, convnext_tiny or vit_small_patch16_224",
    "checkpoint": "outputs/.../checkpoints/best.ckpt",
}
"""Values for keys that have no default and that users give most often."""

CHOICES = {"trainer.precision": "32-true, bf16-mixed, 16-mixed, bf16-true, 16-true or 64-true"}
"""The values of a key that an error line names, in place of all that Lightning takes."""

SCALARS = (int, float, bool, str, type(None))
LISTED = (list, tuple, set, frozenset, Sequence, Collection, Iterable)
MAPPED = (dict, Mapping)

CROPS = ("torchvision.transforms.v2.CenterCrop", "torchvision.transforms.v2.RandomCrop")
"""Transforms that cut out a part of the resized image and don't scale it."""
RESIZES = ("dml.data.transforms.Resize", "torchvision.transforms.v2.Resize")
PAD = "dml.data.transforms.Pad"

SHARED = ("quick", "resume", "accept_changed_data", "stages", "dataset")
"""The keys that all stages of a run share."""


def check(command: str, config: DictConfig) -> None:
    """Check a composed configuration, and write its values as the job takes them: 1e3 steps become 1000.

    Args:
        command: "train", "evaluate", "prepare" or "inspect". What the command doesn't use is neither checked nor
            imported: the test of a stranger's checkpoint imports no loss.
        config: configuration of the command, which is changed in place.
    """
    if command != "train":
        check_values(command, config)
        if command != "prepare":
            check_crops(read_settings(config, SETTINGS[command]))
        return
    stages = list_stages(config)
    for stage in stages:
        check_values(command, stage.config, config, config.stages.get(stage.name))
    complete_metric_names(config)
    settings = read_settings(config, Settings)
    if settings.dataset.fold and not settings.dataset.folds:  # a sweep over folds would train on one split
        fold = f"dataset.fold={settings.dataset.fold}"
        raise InputError(f"{fold}: it needs dataset.folds=5, which divides the training classes")
    changes: Any = OmegaConf.to_container(config.stages, resolve=False)
    _check_stages(stages, changes)
    make_loggers(settings)
    for stage in stages:
        check_crops(stage.settings)
        build_trainer(stage.settings, logger=False)
        _check_frozen(stage.settings)


def check_values(command: str, config: DictConfig, *also: DictConfig | None) -> None:
    """Check that no key is missing or unknown, and that each can take its value.

    Keys of dml's own have the annotations of `dml.run.settings`. The parameters of a ``_target_`` have those of its
    signature, or the types of their defaults. What is in a list is for the function to check.

    Args:
        command: command that uses the configuration.
        config: configuration of the command, or of a stage of a run. 1e3 becomes 1000 in it for a whole number.
        also: configurations that have the same values, in which they become whole numbers, too.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    unused = _list_unused(command)
    used = {name: part for name, part in plain.items() if name not in unused}
    declared = [*_list_declared(used, SETTINGS[command], unused)]
    for name in BUILT:
        if name in used and not _has_target(used[name]):
            raise InputError(f"{name}: has no _target_, which names the class to build")
    for key, value in flat(used).items():
        if (value == "???" and not _is_filled_in(key)) or (key == "checkpoint" and not value):
            raise _make_missing_error(key)
    for key, value, annotation in [*declared, *_list_parameters(used)]:
        if isinstance(value, str) and ("${" in value or value == "???"):  # known later
            continue
        checked = _check_value(key, value, annotation)
        for part in (config, *also) if type(checked) is int and type(value) is float else ():
            if part is not None and OmegaConf.select(part, key) == value:
                OmegaConf.update(part, key, checked)


def _check_value(key: str, value: Any, annotation: Any) -> Any:
    """Return a value as its annotation has it, such as 1000 for 1e3."""
    adapter = _make_adapter(annotation)
    if isinstance(value, float) and value.is_integer():
        is_share = abs(value) <= 1 and adapter.validator.isinstance_python(value)  # 1.0 may be all of the batches
        value = value if is_share else int(value)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        rules = dict.fromkeys(fault["msg"].removeprefix("Input should be ") for fault in error.errors())
        allowed = CHOICES.get(key) or " or ".join(rules)
        raise InputError(f"{key}={format_value(value, in_quotes=False)}: must be {allowed}") from error


@cache
def _make_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def _list_unused(command: str) -> tuple[str, ...]:
    """Return the top-level keys that a command doesn't use."""
    if command == "prepare":
        return tuple(field.name for field in fields(Settings) if field.name not in ("data", "dataset"))
    return () if command == "train" else (*TRAINED, "stages")


def _is_filled_in(key: str) -> bool:
    """Return whether the run gives a value to a key that has none."""
    group, _, name = key.rpartition(".")
    return group == "scheduler.schedule" or (key.startswith(("loss.", "distill.loss")) and name in FILLED_IN)


def _has_target(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("_target_"), str)


def _list_declared(
    part: Mapping[str, Any], kind: type[Any], unused: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the value and the annotation of each key that `dml.run.settings` declares."""
    declared = {name: field for name, field in list_declared(kind).items() if name not in unused}
    for name in part:
        _check_name(prefix, str(name), declared)
    for name, field in declared.items():
        key, group = f"{prefix}{name}", find_group(field.type)
        if name not in part:
            if field.default is MISSING:
                raise _make_missing_error(key)
        elif group is None:
            yield key, part[name], field.type
        elif isinstance(part[name], dict):
            yield from _list_declared(part[name], group, prefix=f"{key}.")
        else:
            yield key, part[name], dict[Any, Any] | None if type(None) in get_args(field.type) else dict[Any, Any]


def _check_name(prefix: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InputError(f"{prefix}{name}: no such key{suggest(name, known)}")


def _make_missing_error(key: str) -> InputError:
    """Return the error about a key without a value, with an example, such as the default choice of a group."""
    entries: Any = OmegaConf.load(CONF / "train.yaml").defaults
    default = next((entry[key] for entry in entries if OmegaConf.is_dict(entry) and key in entry), None)
    example = EXAMPLES.get(key) or (default and f"{key}={default}")
    return InputError(f"{key}: no value; give {key}=..." + (f", such as {example}" if example else ""))


def _iterate_nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node of plain values that has a ``_target_``, with its dotted path."""
    if isinstance(node, dict):
        if _has_target(node):
            yield path, node
        for key, value in node.items():
            yield from _iterate_nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _iterate_nodes(value, f"{path}[{index}]")


def _list_parameters(plain: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the value and the annotation of each value below a ``_target_`` whose type is known."""
    for path, node in _iterate_nodes(plain):
        parameters, takes_any = _find_parameters(node["_target_"])
        for name, value in node.items():
            if name not in parameters:
                if takes_any or name.startswith("_"):
                    continue
                _check_name(f"{path}.", name, parameters)
            # null is Lightning's default; a node may become whatever is needed; transforms of torchvision take lists
            # without an annotation that says so, such as the color ``fill=0``
            is_default = path == "trainer" and (value is None or (name in COUNTED and value == AUTO))
            is_container = isinstance(value, dict | list) and is_below(path, ["transform"])
            if parameters[name] is Any or is_default or is_container or _has_target(value):
                continue
            if isinstance(value, dict) and int in get_args(parameters[name]):  # a whole number for each head
                yield from ((f"{path}.{name}.{head}", number, int) for head, number in value.items())
            else:
                yield f"{path}.{name}", value, parameters[name]


def _find_parameters(target: str) -> tuple[dict[str, Any], bool]:
    """Return the annotation of each parameter of a function or class, and whether it may take others, too."""
    try:
        function: Any = resolve_name(target)
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (ImportError, AttributeError, ValueError, TypeError, NameError):  # building the object tells what is wrong
        return {}, True
    annotations = {}
    for name, parameter in signature.parameters.items():
        default = parameter.default
        if name in hints:
            annotations[name] = _simplify(Union[hints[name], None] if default is None else hints[name])  # noqa: UP007 (of any hint)
        elif isinstance(default, str):
            annotations[name] = str | list[Any] | dict[Any, Any]
        elif isinstance(default, bool):
            annotations[name] = bool
        else:
            annotations[name] = type(default) | float if isinstance(default, int | float) else Any
    return annotations, any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _simplify(annotation: Any) -> Any:
    """Return an annotation of scalars, choices, lists and mappings alone; `Any` if an object of a class may be due."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    simple = [kind if get_origin(kind) is Literal or kind in SCALARS else _find_container(kind) for kind in kinds]
    if Any in simple:  # a text or a number may stand for the object
        return Any
    filled_in = () if {*simple}.intersection(SCALARS) else (type(None),)  # as the loss's sizes are
    return Union[(*simple, *filled_in)]


def _find_container(kind: Any) -> Any:
    container = get_origin(kind) or kind
    return list[Any] if container in LISTED else dict[Any, Any] if container in MAPPED else Any


def _check_stages(stages: Sequence[Stage], changes: Mapping[str, Any]) -> None:
    """Make sure that no stage changes what all share, and that a recurrent model begins with a trained network."""
    for number, (name, changed) in enumerate(changes.items()):
        keys = flat(changed or {})
        fixed = [*SHARED, "training.init"] if number else SHARED  # a later stage goes on with the weights of another
        if refused := next((key for key in fixed if any(is_below(changed_key, [key]) for changed_key in keys)), None):
            raise InputError(f"stages.{name}.{refused}: the run's own is that of all stages; give it without stages")
    settings = stages[0].settings
    if settings.recurrent and not (settings.training.init or settings.resume):
        raise InputError(
            "recurrent: it finds neighbors by a trained network, and the run has none; training.init=CHECKPOINT names "
            "one, or an earlier stage trains it, as in experiment=lns/emoji/rnn"
        )


def _check_frozen(settings: Settings) -> None:
    """Make sure that no option contradicts ``training.frozen``."""
    values = {
        "recurrent=none": settings.recurrent,
        "training.compile=null": settings.training.compile,
        "adapter=none": settings.adapter,
    }
    if remedies := [remedy for remedy, value in values.items() if settings.training.frozen and value]:
        raise InputError(f"training.frozen=true: trains heads alone, without the network; {', '.join(remedies)}")


def check_crops(settings: Settings) -> None:
    """Refuse a crop that is larger than the image is resized to before, and log a warning if it is less than half.

    Such a crop comes from a ``transform.size`` that the file's Resize doesn't follow: transform=rll always resizes to
    256. With transform.size=64 a test would see a sixteenth of each image, and with 336 a black frame around it.
    """
    for split in ("train", "test"):
        node: Any = OmegaConf.to_container(getattr(settings.transform, split), resolve=True)
        side: int | None = None
        for step in node.get("steps") or ():
            target, size = step.get("_target_"), step.get("size")
            if not isinstance(size, int):
                continue
            if target in RESIZES:
                side = size
            elif side is not None and target == PAD:
                side = max(side, size)
            elif side is not None and target in CROPS:
                line = f"transform.{split} crops {size} of {side} pixels"
                remedy = "transform=imagenet resizes in proportion to transform.size"
                if size > side:
                    raise InputError(f"{line}, and frames each image in black: {side} at most; {remedy}")
                if 2 * size < side:
                    logger.warning("%s: most of each image is cut off; %s", line, remedy)


def check_share(key: str, settings: Settings, part: ImageTable) -> None:
    """Make sure that a share of the batches of a validation or a test is a batch at least."""
    trainer = settings.trainer
    processes = max(1, trainer.devices) * (trainer.get("num_nodes") or 1) if isinstance(trainer.devices, int) else 1
    share, batches = trainer.get(key), -(-len(part) // (settings.data.eval_batch_size * processes))
    if isinstance(share, float) and share > 0 and int(share * batches) < 1 <= batches:
        raise InputError(
            f"trainer.{key}={share}: less than one of the {batches} batches; {1 / batches:.3g} or more, or a whole "
            "number of batches"
        )


def check_tested_settings(settings: Settings, table: ImageTable) -> MetricConfig:
    """Make sure, before anything is embedded, that a test can use its settings -> the configuration of its metrics."""
    metrics = build_metric_config(settings, table)
    metrics.check_labels()
    build_threshold_settings(settings)
    if settings.evaluation.reranking and metrics.exclude_nearest:
        raise InputError(
            f"evaluation.reranking={settings.evaluation.reranking}: with evaluation.exclude=nearest a query excludes "
            "another item after it; evaluation.exclude=null"
        )
    return metrics


def check_evaluation(settings: Settings, table: ImageTable) -> None:
    """Make sure, before any training, that every metric of the configuration can be computed."""
    metrics, heads = check_tested_settings(settings, table), list(settings.model.heads)
    check_queries(table.select_evaluated("test"))
    evaluated_heads = list_tested_heads(settings)
    validated = table.select_evaluated("test" if choose_selection(settings, table) == "test" else "val")
    if len(validated):  # without a validation nothing is monitored
        monitor, mode = settings.checkpoints.monitor, settings.checkpoints.mode
        if settings.trainer.val_check_interval is not None or settings.trainer.check_val_every_n_epoch is not None:
            check_queries(validated)
            check_validation_classes(validated)
            check_share("limit_val_batches", settings, validated)
        check_monitor(monitor, mode, validated, metrics, heads, evaluated_heads)
        check_tie_breaker(settings.checkpoints.tie_breaker, validated, metrics)
        make_further_config(settings.evaluation.validation_metrics, metrics, (), validated)


def check_search(config: DictConfig) -> None:
    """Make sure that the runs of a search validate, and that a validation has the metric."""
    complete_metric_names(config)
    settings, stages = read_settings(config, Settings), list_stages(config)
    table = build_table(settings)
    choose_tested_split(settings, table)
    for stage in stages:
        check_evaluation(stage.settings, table)
    metric, last = monitored_metric(settings), stages[-1].settings.trainer
    validates = last.val_check_interval is not None or last.get("check_val_every_n_epoch") is not None
    if not validates or (metric.startswith("val/") and not len(table.rows("val"))):
        raise InputError(
            f"sweep=optuna: the search optimizes {metric}, which no validation computes: it takes a validation split, "
            "such as that of dataset.folds=5, and a trainer.val_check_interval"
        )
