"""The arguments of a command that Hydra composes: what it would misread is quoted, or refused in one line."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dml.run.config_folders import CONF, GROUPS, format_value
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RUN_KEYS, newest_runs
from dml.runtime.text import printable

MERGED = ("evaluation", "experiment", "logger")
"""The groups of which a run may have several choices, whose values join."""
MULTIRUN = ("-m", "--multirun")
OPTIONS = (
    *("-h", "-c", "-p", "-r", "-cp", "-cn", "-cd", "-i", "-sc", *MULTIRUN),
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--shell-completion"),
    *("--config-path", "--config-name", "--config-dir", "--experimental-rerun", "--info"),
)
"""Hydra's options; it also takes the beginning of a name."""
PATHS = (
    *("data.cache", "dataset.root", "distill.teacher", "training.init", "resume", "checkpoint"),
    *("model.backbone.weights", "hydra.run.dir", "hydra.sweep.dir"),
)
"""The keys that hold paths."""


def read_arguments(words: Sequence[str]) -> list[str]:
    """Refuse what Hydra would misread, or answer with a trace -> the words with its options first.

    Raises:
        InputError: for the first word that can't be used.
    """
    is_sweep = asks_for_sweep(words)
    for word in (*words, os.getcwd()):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{printable(word)}: not UTF-8, as all that a run writes; rename the file or folder"
            ) from error
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            _check_option(word)
        elif value.startswith("glob(") and "sweep=optuna" in words:
            raise InputError(f"{word}: sweep=optuna takes choice(A,B), and no glob")
        elif key in GROUPS:
            _check_choice(key, value, is_sweep=is_sweep)
        elif key in ("hydra.run.dir", "hydra.sweep.dir") and equals and value in ("", "''", '""', "null"):
            raise InputError(
                f"{word}: names no folder; {key}=. is the current one, and without {key} a new one is made"
            )
    if is_sweep and (shown := {"--cfg", "-c", "--info", "-i"}.intersection(words)):
        raise InputError(f"{min(shown)}: shows one configuration, and a sweep has many; leave out --multirun")
    return put_options_first(words)


def _check_option(word: str) -> None:
    name, equals, value = word.partition("=")
    if word == "--" or not any(option.startswith(name) for option in OPTIONS):
        key = name.lstrip("-").replace("-", "_")
        remedy = f"{key}={value}, without hyphens, sets a value" if equals else "values are given as KEY=VALUE"
        raise InputError(f"{word}: no such option; {remedy}")


def _check_choice(group: str, value: str, *, is_sweep: bool) -> None:
    """Refuse null and numbers, for which Hydra raises an exception, and several choices, whose files it would merge."""
    if re.fullmatch(r"null|true|false|[+-]?\d+(\.\d*)?|\{.*", value, re.IGNORECASE):
        choices = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        shown = ", ".join(sorted(choices, key=lambda name: name != "none")[:3])
        raise InputError(f"{printable(group)}={value}: must be the name of a choice, such as {shown or 'a file there'}")
    names = value.strip("[]").replace(" ", "")
    is_refused = group not in MERGED if value.startswith("[") else not is_sweep
    if is_refused and re.fullmatch(r"[\w/-]+(,[\w/-]+)+", names):
        raise InputError(f"{group}={value}: must be one choice; -m {group}={names} runs each in turn")


def asks_for_sweep(arguments: Iterable[str]) -> bool:
    """Tell whether the arguments ask Hydra for a sweep: by an option, the beginning of its name, or its mode."""
    return any(
        argument in ("-m", "hydra.mode=MULTIRUN") or (len(argument) > 2 and MULTIRUN[1].startswith(argument))
        for argument in arguments
    )


def put_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with Hydra's options, such as ``-m``, first: it refuses overrides on both sides of one."""
    return sorted(arguments, key=lambda argument: argument[:1] == "~" or (argument[:1] != "-" and "=" in argument))


def replace_latest(argument: str) -> str:
    """Return an argument with the newest run below outputs/, or a checkpoint of it, in the place of ``latest``.

    Raises:
        InputError: if there is no run.
    """
    key, _, value = argument.partition("=")
    if value != "latest" or key not in ("resume", "checkpoint", "training.init"):
        return argument
    for run in newest_runs(Path("outputs")):
        checkpoint = run.best_checkpoint if run.best_checkpoint.exists() else run.last_checkpoint
        return f"{key}={run.path if key == 'resume' else checkpoint}"
    raise InputError(f"{argument}: no run below outputs")


def quote_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around each path, and each other text with letters that Hydra's grammar lacks.

    Lists, mappings, interpolations, and quotes and sweeps of the user's own are left alone.
    """
    is_sweep = asks_for_sweep(arguments)
    # Hydra's own keys have one value, also in a sweep
    return [_quote_value(argument, is_sweep and not argument.startswith("hydra.")) for argument in arguments]


def _quote_value(argument: str, is_sweep: bool) -> str:
    key, equals, value = argument.partition("=")
    is_listed = value[:1] in ("[", "{")
    is_path = key.lstrip("+") in PATHS or ("." in key and "/" in value and not is_listed)
    is_text = is_path or not (is_listed or value.isascii())
    if not equals or not is_text or key[:1] in "-~" or "${" in value or value == "null":
        return argument
    override = _parse(argument)
    is_users = value[:1] in ("'", '"') or (is_sweep and override is not None and override.is_sweep_override())
    if override is not None and (is_users or not is_path):
        return argument
    # a run stores other paths with their ``~``, for a machine on which the home folder is another
    if value.startswith("~") and (key in RUN_KEYS or key.startswith("hydra.")):
        value = str(expand_home(value))
    texts = [text.strip() for text in value.split(",")] if is_sweep else [value]
    return f"{key}={','.join(map(format_value, texts))}"


def _parse(argument: str) -> Override | None:
    """Return an argument as Hydra reads it; None if it can't."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def find_path(arguments: Sequence[str], key: str) -> Path | None:
    """Return the path behind the last ``key=`` among the arguments, such as "resume="; None without one, or for null.

    Raises:
        HydraException: if its quotes are never closed.
    """
    overrides = [argument for argument in arguments if argument.partition("=")[0] == key]
    value = overrides[-1].partition("=")[2] if overrides else ""
    if value[:1] in ("'", '"'):
        value = str(OverridesParser.create().parse_override(overrides[-1]).value())
    return expand_home(value) if value not in ("", "null") else None
