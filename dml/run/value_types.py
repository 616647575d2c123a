"""The values of a configuration, held against the table of settings and the parameters of what they are passed to."""

import inspect
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from difflib import get_close_matches
from functools import cache, partial
from itertools import chain
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from omegaconf import DictConfig, OmegaConf

from dml.run.config_folders import format_value
from dml.run.settings import SETTINGS, find_group, list_declared
from dml.runtime.configuration import is_below
from dml.runtime.errors import InputError, suggest
from dml.training.run_length import AUTO, COUNTED

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}
OTHER_VALUES = {
    **dict.fromkeys(("fp16", "float16", "half", "amp", "16bit"), "16-mixed"),
    **dict.fromkeys(("fp32", "float32", "full"), "32-true"),
    **dict.fromkeys(("bf16mixed", "bfloat16"), "bf16-mixed"),
}
"""Values that have other names elsewhere, and the choices here."""
BOUNDS = {Ge: "{0.ge} or more", Gt: "above {0.gt}", Lt: "below {0.lt}", Le: "{0.le} at most"}
SCALARS = (int, float, bool, str, type(None))
LISTED = (list, tuple, set, frozenset, Sequence, Collection, Iterable)
MAPPED = (dict, Mapping)

_show = partial(format_value, in_quotes=False)


def check_types(config: DictConfig, *also: DictConfig, command: str = "train") -> None:
    """Refuse the first key that doesn't exist, or whose value it can't take; 1e3 becomes a whole number for one.

    Keys of dml's own have the annotations of `dml.run.settings`. The parameters of a ``_target_`` have those of its
    signature, or the types of their defaults. What is in a list is for the function to check.

    Args:
        config: a composed configuration, or a part of one.
        also: configurations that have the same values, in which they become whole numbers too.
        command: "train", "evaluate", "prepare" or "inspect".

    Raises:
        InputError: naming the key, the value and what would be right.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    for key, value, annotation in chain(_list_settings(plain, SETTINGS[command]), _list_parameters(plain)):
        if isinstance(value, str) and ("${" in value or value == "???"):  # known later
            continue
        checked = check_value(key, value, annotation)
        if isinstance(value, float) and isinstance(checked, int):
            for part in (config, *also):
                if OmegaConf.select(part, key) == value:
                    OmegaConf.update(part, key, checked)


def check_value(key: str, value: Any, annotation: Any) -> Any:
    """Return a value as its annotation has it, such as 1000 for 1e3.

    Raises:
        InputError: naming the key, the value and what would be right.
    """
    from pydantic import ValidationError  # late: --help and --cfg check nothing

    kinds = [*_list_kinds(annotation)]
    may_be_share = float in kinds and isinstance(value, float) and abs(value) <= 1
    is_whole = isinstance(value, float) and value.is_integer() and int in kinds and not may_be_share
    value = int(value) if is_whole else value
    try:
        return _make_adapter(annotation).validate_python(value)
    except ValidationError as error:
        raise InputError(f"{key}={_show(value)}: must be {_describe(key, value, annotation)}") from error


@cache
def _make_adapter(annotation: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(annotation, config=ConfigDict(strict=True))


def _list_settings(plain: Mapping[str, Any], kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the value and the annotation of each key of a part, and of the groups in it."""
    declared = list_declared(kind)
    for name, value in plain.items():
        if name not in declared:
            raise InputError(f"{prefix}{name}: no such key{suggest(str(name), declared)}")
        annotation = declared[name].type
        group = find_group(annotation)
        if group is None:
            yield f"{prefix}{name}", value, annotation
        elif isinstance(value, dict):
            needed = [key for key, field in list_declared(group).items() if field.default is MISSING]
            missing = [key for key in needed if key not in value]
            if missing:
                raise InputError(f"{prefix}{name}.{missing[0]}: no value; give {prefix}{name}.{missing[0]}=...")
            yield from _list_settings(value, group, f"{prefix}{name}.")
        else:
            may_be_null = type(None) in get_args(annotation)
            yield f"{prefix}{name}", value, dict[Any, Any] | None if may_be_null else dict[Any, Any]


def iterate_nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node that has a ``_target_``, with its dotted path."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield path, node
        for key, value in node.items():
            yield from iterate_nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from iterate_nodes(value, f"{path}[{index}]")


def _list_parameters(plain: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the value and the annotation of each value below a ``_target_`` whose type is known."""
    for path, node in iterate_nodes(plain):
        parameters = _find_parameters(node["_target_"])
        for name, value in node.items():
            is_default = path == "trainer" and value is None  # null is Lightning's default there
            is_counted = path == "trainer" and name in COUNTED and value == AUTO
            is_object = isinstance(value, dict) and "_target_" in value  # which may become whatever is needed
            if name not in parameters or is_default or is_counted or is_object:
                continue
            annotation = parameters[name]
            if isinstance(value, dict) and int in _list_kinds(annotation):  # a whole number for each head
                yield from ((f"{path}.{name}.{key}", inner, int) for key, inner in value.items())
            # transforms of torchvision take lists without an annotation that says so, such as the color ``fill=0``
            elif not (isinstance(value, dict | list) and is_below(path, ["transform"])):
                yield f"{path}.{name}", value, annotation


def _find_parameters(target: str) -> Mapping[str, Any]:
    """Return the annotation of each parameter of a function or class, as `_simplify` returns it, where it is known."""
    try:
        function: Any = resolve_name(target)
    except (ImportError, AttributeError, ValueError):  # building the object tells what is wrong
        return {}
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (TypeError, ValueError, NameError):  # written in C, or annotated with names that only its module has
        return {}
    annotations: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        default = parameter.default
        if name in hints:
            annotations[name] = _simplify(Union[hints[name], None] if default is None else hints[name])  # noqa: UP007 (of any hint)
        elif isinstance(default, str):
            annotations[name] = str | list[Any] | dict[Any, Any]
        elif isinstance(default, bool | int | float):
            annotations[name] = bool if isinstance(default, bool) else type(default) | float
    return annotations


def _simplify(annotation: Any) -> Any:
    """Return an annotation of scalars, choices, lists and mappings; `Any` for what may be made of a node or a text."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    simple = [kind if get_origin(kind) is Literal or kind in SCALARS else _find_container(kind) for kind in kinds]
    filled_in = () if {*simple}.intersection(SCALARS) else (type(None),)  # as the loss's sizes are
    return Union[(*simple, *filled_in)]


def _find_container(kind: Any) -> Any:
    """Return the list or the mapping of an annotation; `Any` for a class, of which a text may stand for an object."""
    container = get_origin(kind) or kind
    return list[Any] if container in LISTED else dict[Any, Any] if container in MAPPED else Any


def _list_kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation, those in a union one by one: ``int`` of ``Annotated[int, Ge(1)] | None``."""
    if get_origin(annotation) in (Union, types.UnionType):
        for kind in get_args(annotation):
            yield from _list_kinds(kind)
    elif get_origin(annotation) is Annotated:
        yield from _list_kinds(get_args(annotation)[0])
    elif get_origin(annotation) is not Literal:
        yield get_origin(annotation) or annotation


def _describe(key: str, value: Any, annotation: Any) -> str:
    """Return what a key takes, such as "one of raise, skip; is it skip?" or "a number, 0 or more, or null"."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    parts = get_args(annotation) if is_union else (annotation,)
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    kinds = [*_list_kinds(annotation)]
    expected = [word for kind, word in WORDS.items() if kind in kinds and not (kind is int and float in kinds)]
    if choices:
        meant = OTHER_VALUES.get(_show(value))
        nearest = [meant] if meant in choices else get_close_matches(_show(value), choices, n=1, cutoff=0.6)
        hint = f"; is it {nearest[0]}?" if nearest else ""
        return f"one of {', '.join([*dict.fromkeys(choices), *expected])}{hint}"
    if list in kinds and dict not in kinds:
        return f"a list, such as '{key}=[{_show(value)}]'"
    bounds = [bound for part in parts if get_origin(part) is Annotated for bound in part.__metadata__]
    if limits := _describe_bounds(bounds):
        other_kinds = expected[1:]
        return f"{expected[0]}, {limits}" + (f", or {' or '.join(other_kinds)}" if other_kinds else "")
    return " or ".join(expected)


def _describe_bounds(bounds: list[Any]) -> str:
    """Return the bounds of a number, such as "0 or more"."""
    parts = (part for entry in bounds for part in (entry if isinstance(entry, Interval) else [entry]))
    return " and ".join(BOUNDS[type(part)].format(part) for part in parts)
