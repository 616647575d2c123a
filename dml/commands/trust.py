"""What the overrides in a checkpoint or a run's folder may do, and what a configuration made of them may build.

Such a file may come from anyone. What it holds is composed and built as if the user had typed it, so it may give plain
values, choose among the configurations that are on this machine, and name known objects, see
`dml.runtime.targets`. Whoever trusts a file beyond that says ``trust=true``. What the command line itself
says is trusted always.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dml.run.building import describe_unknown
from dml.run.config_folders import calls_resolver
from dml.run.settings import list_keys
from dml.run.stages import list_stages, resolve_parts
from dml.runtime.configuration import key_of
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RUN_KEYS
from dml.runtime.targets import TARGET, Unknown, unknown_targets
from dml.runtime.text import in_markup, printable

KEY = re.compile(r"[A-Za-z][\w-]*([./][\w-]+)*")

WRITTEN = {"save_dir", "log_dir", "dirpath", "default_root_dir"}
"""Arguments of Lightning's objects that name folders to write into: a run writes into its own folder alone."""

ADVICE = "trust=true if you trust this file"


def file_source(arguments: Iterable[str]) -> str | None:
    """Return the argument that takes overrides out of a file, ``resume=`` or ``checkpoint=``; None without one."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in ("resume", "checkpoint") and value:
            return argument
    return None


def is_trusted(arguments: Iterable[str]) -> bool:
    """Return whether ``trust=true`` is among the arguments."""
    return any(argument.lstrip("+").lower() == "trust=true" for argument in arguments)


def check_overrides(stored: Iterable[str], arguments: Sequence[str]) -> None:
    """Make sure that overrides out of a file give values and choose configurations, and do nothing else.

    Raises:
        InputError: if an override would do more, unless the command line trusts the file.
    """
    if is_trusted(arguments):
        return
    for override in stored:
        if fault := _fault(override):
            raise InputError(f"{file_source(arguments)}: its override {printable(override)} {fault}; {ADVICE}")


def _fault(override: str) -> str | None:
    """Return what an override does that one out of a file must not do; None if it is harmless."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return "is not one"
    keys = [parsed.key_or_group, *([] if parsed.package is None else [parsed.package])]
    if not all(KEY.fullmatch(key) and re.split(r"[./]", key)[0] not in ("hydra", *RUN_KEYS) for key in keys):
        return "says how to run, not what"
    if parsed.is_sweep_override():
        return "gives several values"
    values = [*_leaves(parsed.value())]
    if WRITTEN & {*re.split(r"[./]", parsed.key_or_group), *(value for value in values if isinstance(value, str))}:
        return "says where to write"
    if any(value is not None and not isinstance(value, str | int | float) for value in values):
        return "is more than a value"
    texts = [value for value in values if isinstance(value, str)]
    if any(calls_resolver(text) for text in texts):
        return "reads what is outside of the configuration"
    chooses = "." not in parsed.key_or_group and parsed.key_or_group not in list_keys("is_path")
    if chooses and any("\\" in text or {"", ".", ".."} & {*text.split("/")} for text in texts):
        return "names a file"
    return None


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the plain values in a parsed override, a mapping's keys among them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def check_targets(command: str, config: DictConfig, arguments: Sequence[str]) -> Collection[Unknown] | None:
    """Make sure that a configuration which is made of a file's overrides builds known objects only.

    What the command line itself names, by a ``_target_`` or by the choice of a configuration, is not held against the
    file.

    Returns:
        The unknown objects that may be built: the command line's own, or None, which means all.

    Raises:
        InputError: if objects are unknown, unless the command line trusts the file: then they are printed.
    """
    source = file_source(arguments)
    if source is None:
        return None
    unknown = _unknown(command, config)
    named = _unknown(command, _compose_alone(command, arguments)) if unknown else []
    if not (foreign := [target for target in unknown if target not in named]):
        return named
    described = describe_unknown(foreign)
    if not is_trusted(arguments):
        raise InputError(f"{source}: {described} comes from this file, is not known and could run any code; {ADVICE}")
    from pytorch_lightning.utilities import rank_zero_only

    rank_zero_only(console.print)(f"[bold]trusted[/]  {in_markup(f'{source}: {described}')}")
    return None


def _unknown(command: str, config: DictConfig | None) -> list[Unknown]:
    """Return the unknown objects that any stage of a command would build, once each."""
    if config is None:
        return []
    unused = (*list_keys("is_trained"), "stages") if command == "evaluate" else ("stages",)
    configs = [config, *(stage.config for stage in list_stages(config))]
    return [*dict.fromkeys(target for part in configs for target in unknown_targets(resolve_parts(part, unused)))]


def _compose_alone(command: str, arguments: Iterable[str]) -> DictConfig | None:
    """Compose the choices and targets of the command line without the file; None if that is impossible."""
    chosen = []
    for argument in arguments:
        key = key_of(argument)
        if argument.startswith("-") or key in RUN_KEYS:
            continue
        if "." not in key or key == "hydra.searchpath":
            chosen.append(argument)
        elif (TARGET in argument or "training.compile" in key) and not argument.startswith("~"):
            chosen.append(f"++{argument.lstrip('+')}")  # whether the key is there may be the file's choice
    try:
        return compose(command, overrides=chosen)
    except (HydraException, OmegaConfBaseException):  # they change what only the file chooses
        return None
