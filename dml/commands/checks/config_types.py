"""The types of a configuration's values, held against the annotations of what they are passed to."""

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from dml.ops.configuration.nested import flat, is_below
from dml.ops.errors import InputError
from dml.run.stages import TRAINING_ONLY
from dml.training.run_length import AUTO, COUNTED

OWN_KEYS: dict[str, Any] = {
    "seed": int,
    "quick": bool,
    "split": Literal["train", "val", "test"] | None,
    "ema": float | None,
    "gradient_cache": int | None,
    "shard_loss": bool,
    "debug": bool,
    "trust": bool,
    "accept_changed_data": bool,
    "choose_heads": bool,
    "processes": int | None,
    "output": str | None,
    "data.eval_batch_size": int,
    "data.max_image_bytes": int,
    "data.max_pixels": int,
    "data.background": str,
    "data.check_images": int,
    "data.max_list_bytes": int,
    "data.on_corrupt": Literal["raise", "skip"],
    "dataset.name": str,
    "dataset.root": str | None,
    "dataset.disjoint": bool,
    "dataset.verify": bool,
    "dataset.queries_in_gallery": bool | None,
    "dataset.corrections": str | None,
    "dataset.class_splits": str | None,
    "dataset.folds": int | None,
    "dataset.fold": int,
    "transform.size": int,
    "checkpoints.beginning": bool,
    "checkpoints.every_n_steps": int,
    "checkpoints.every_n_seconds": float | None,
    "checkpoints.patience": int | None,
    "checkpoints.tie_breaker": str | None,
    "checkpoints.mode": Literal["max", "min"],
    "evaluation.selection": Literal["val", "last", "test"],
    "evaluation.split": Literal["val"] | None,
    "evaluation.crops": int,
    "evaluation.alpha": float,
    "evaluation.count_query": bool,
    "evaluation.clustering": bool,
    "evaluation.heads": bool,
    "evaluation.raw": bool,
    "evaluation.fixed_neighbors": int | None,
    "evaluation.report.map": bool,
    **dict.fromkeys(("evaluation.report.neighbors", "evaluation.sheet.queries", "evaluation.sheet.neighbors"), int),
    **dict.fromkeys(("evaluation.reranking_steps.alpha_qe.n", "evaluation.reranking_steps.dba.n"), int),
    **dict.fromkeys(("evaluation.reranking_steps.k_reciprocal.k1", "evaluation.reranking_steps.k_reciprocal.k2"), int),
    "evaluation.threshold.wrong_share": float,
    "evaluation.threshold.fmr": float | None,
    "scheduler.warmup_steps": int,
    "scheduler.warmup_epochs": float | None,
    "scheduler.interval": Literal["step", "epoch"],
    "stored.every_n_steps": int | None,
}
"""Types of the keys that belong to no `_target_`."""

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
LISTS = {
    "evaluation.recall_at": False,
    "evaluation.metrics": False,
    "evaluation.level_weights": True,
    "evaluation.rerankings": True,
    "model.heads": False,
}
"""Keys whose value is a list, and whether it may be null."""
MAPPINGS = {
    "transform.train": False,
    "transform.test": False,
    "evaluation.other_labels": False,
    "evaluation.report": True,
    "evaluation.sheet": True,
    "scheduler.loss": True,
    "sheet": True,
}
"""Keys whose value is a mapping, and whether it may be null."""
OTHER_VALUES = {
    **dict.fromkeys(("fp16", "float16", "half", "amp", "16bit"), "16-mixed"),
    **dict.fromkeys(("fp32", "float32", "full"), "32-true"),
    **dict.fromkeys(("bf16mixed", "bfloat16"), "bf16-mixed"),
}
"""Values that have other names elsewhere, and the choices here."""
Scalar = bool | int | float | str | None


class Container:
    """The kind of a parameter that may take a list or a mapping, however its values are annotated."""


def select_used_parts(command: str, config: DictConfig) -> DictConfig:
    """Return the parts of a configuration that a command builds objects of.

    The targets of other parts are not imported: a test of a checkpoint from somebody else doesn't need them, and
    `dml.commands.checks.trust` hasn't looked at them.

    Args:
        command: "train", "evaluate", "prepare", "inspect", "audit" or "shift".
        config: the composed configuration.
    """
    if command == "train":
        return config
    keys = [str(key) for key in config if str(key) not in (*TRAINING_ONLY, "stages")]
    used: DictConfig = OmegaConf.masked_copy(config, ["dataset", "data", "processes"] if command == "prepare" else keys)
    return used


def check_types(config: DictConfig, *also: DictConfig) -> None:
    """Refuse the first value whose type doesn't suit the parameter that it is for; 1e3 becomes a whole number for one.

    A ``_target_``'s parameters state their types by annotations; where there is none, by their default value. Numbers,
    texts, true, false and null are looked at, and lists and mappings where a parameter takes none. What is in a list
    is for the function to check.

    Args:
        config: a composed configuration, or a part of one.
        also: configurations that have the same values, in which they become whole numbers too.

    Raises:
        InputError: naming the key, the value and what would be right.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    values = flat(plain)
    for key, may_be_null in LISTS.items():
        if key in values and not _is_container(values[key], may_be_null):
            shown = _show(values[key])
            raise InputError(f"{key}={shown}: must be a list, such as '{key}=[{shown}]'")
    for key, may_be_null in MAPPINGS.items():
        if key in values and not _is_container(values[key], may_be_null):
            raise InputError(f"{key}={_show(values[key])}: must be a mapping{' or null' if may_be_null else ''}")
    own_values = ((key, values[key], _kinds(annotation)) for key, annotation in OWN_KEYS.items() if key in values)
    for key, value, kinds in (*own_values, *_list_parameters(plain)):
        if _is_whole(value, kinds):
            for part in (config, *also):
                if OmegaConf.select(part, key) == value:
                    OmegaConf.update(part, key, int(value))
        elif not _is_reference(value):
            _check(key, value, kinds)


def _is_container(value: Any, may_be_null: bool) -> bool:
    """Return whether a value is a list or a mapping, perhaps one that is filled in later, or null where it may be."""
    return not isinstance(value, Scalar) or _is_reference(value) or (value is None and may_be_null)


def _show(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(_show, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_show(inner)}' for key, inner in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _nodes_with_target(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node that has a ``_target_``, with its dotted path."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield path, node
        for key, value in node.items():
            yield from _nodes_with_target(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _nodes_with_target(value, f"{path}[{index}]")


def _list_parameters(plain: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the key, the value and the kinds of each value below a ``_target_`` whose type is known."""
    for path, node in _nodes_with_target(plain):
        parameters = _parameters(node["_target_"])
        for name, value in node.items():
            is_default = path == "trainer" and value is None  # null is Lightning's default there
            is_counted = path == "trainer" and name in COUNTED and value == AUTO
            is_object = isinstance(value, dict) and "_target_" in value  # which may become whatever is needed
            is_typed = name in parameters and not (is_default or is_counted or is_object)
            if is_typed and isinstance(value, dict) and int in parameters[name]:  # a whole number for each head
                yield from ((f"{path}.{name}.{key}", inner, (int,)) for key, inner in value.items())
            elif is_typed and not (isinstance(value, dict | list) and _may_be_container(path, parameters[name])):
                yield f"{path}.{name}", value, parameters[name]


def _may_be_container(path: str, kinds: tuple[Any, ...]) -> bool:
    """Return whether a parameter of these kinds may take a list or a mapping.

    Transforms of torchvision take lists without an annotation that says so, such as the colour ``fill=0``.
    """
    return Container in kinds or is_below(path, ["transform"])


def _is_reference(value: Any) -> bool:
    """Return whether a value is an interpolation, or one that is filled in later."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _parameters(target: str) -> Mapping[str, tuple[Any, ...]]:
    """Return for each parameter of a function or class the kinds of values that it takes, where they are known."""
    try:
        function: Any = resolve_name(target)
    except (ImportError, AttributeError, ValueError):  # building the object tells what is wrong
        return {}
    try:
        signature = inspect.signature(function)
        hinted = function.__init__ if inspect.isclass(function) else function
        hints = typing.get_type_hints(hinted)
    except (TypeError, ValueError, NameError):  # written in C, or annotated with names that only its module has
        return {}
    kinds = {}
    for name, parameter in signature.parameters.items():
        default = parameter.default
        if name in hints:
            allowed = _kinds(hints[name]) + ((type(None),) if default is None else ())
        elif isinstance(default, str):
            allowed = (str, Container)
        elif isinstance(default, bool | int | float):
            allowed = (bool,) if isinstance(default, bool) else (type(default), float)
        else:
            continue
        kinds[name] = allowed
    return kinds


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return what an annotation admits: types of scalars, `Literal` choices, `Container`, and `Any` for the rest."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _kinds(part))
    if origin is Literal:
        return tuple(("choice", choice) for choice in get_args(annotation))
    if annotation is None:
        return (type(None),)
    if annotation in (bool, int, float, str, type(None)):
        return (annotation,)
    # a class, a function or a container is made of a node; a text may stand for one (a path, a dtype, an enum)
    is_container = origin is not None or (inspect.isclass(annotation) and annotation.__module__ == "builtins")
    return (Container,) if is_container else (Any,)


def _check(key: str, value: Any, kinds: tuple[Any, ...]) -> None:
    if {*kinds} <= {Container} or Any in kinds or any(_is_of(value, kind) for kind in kinds):
        return
    choices = [str(kind[1]) for kind in kinds if isinstance(kind, tuple)]
    expected_types = [word for kind, word in WORDS.items() if kind in kinds and not (kind is int and float in kinds)]
    if {*kinds} <= {Container, type(None)}:
        expected_types = ["a list or a mapping", *expected_types]
    shown = _show(value)
    if not choices:
        raise InputError(f"{key}={shown}: must be {' or '.join(expected_types)}")
    meant = OTHER_VALUES.get(shown)
    nearest = [meant] if meant in choices else get_close_matches(shown, choices, n=1, cutoff=0.6)
    hint = f"; is it {nearest[0]}?" if nearest else ""
    raise InputError(f"{key}={shown}: must be one of {', '.join([*dict.fromkeys(choices), *expected_types])}{hint}")


def _is_whole(value: Any, kinds: tuple[Any, ...]) -> bool:
    """Return whether a number such as 1e3, which is read as a float, is meant as a whole one; 1.0 may be a share."""
    return isinstance(value, float) and value.is_integer() and int in kinds and (float not in kinds or abs(value) > 1)


def _is_of(value: Scalar, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return bool(value == kind[1]) and isinstance(value, bool) == isinstance(kind[1], bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
