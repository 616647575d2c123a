"""Paths among the arguments of the command line, which Hydra would read as lists, sweeps and dictionaries."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dml.run.config_folders import CONF, GROUPS, format_value, quote
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RUN_KEYS, newest_runs
from dml.runtime.text import printable

MERGED = ("callbacks", "evaluation", "experiment", "logger")
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
WORDS = re.compile(r"""'(?:\\.|[^'])*'|"(?:\\.|[^"])*"|[^\s\[\]{},:'"](?:[^\[\]{},:]|:(?=//))*""")
"""The words in a list or a mapping, with the quotes that some of them have."""


def check_encoding(names: Sequence[str]) -> None:
    """Make sure that arguments, and the paths among them, are UTF-8: the files that a run writes hold them.

    Raises:
        InputError: if one of them is not.
    """
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{printable(name)}: not UTF-8, as all that a run writes; rename the file or folder"
            ) from error


def asks_for_sweep(arguments: Iterable[str]) -> bool:
    """Tell whether the arguments ask Hydra for a sweep: by an option, the beginning of its name, or its mode."""
    return any(
        argument in ("-m", "hydra.mode=MULTIRUN") or (len(argument) > 2 and MULTIRUN[1].startswith(argument))
        for argument in arguments
    )


def put_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with Hydra's options, such as ``-m``, first: it refuses overrides on both sides of one.

    Raises:
        InputError: if an argument with hyphens is none of Hydra's options.
    """
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument != "--" and (not name.startswith("-") or any(option.startswith(name) for option in OPTIONS)):
            continue
        key = name.lstrip("-").replace("-", "_")
        remedy = f"{key}={value}, without hyphens, sets a value" if equals else "values are given as KEY=VALUE"
        raise InputError(f"{argument}: no such option; {remedy}")
    return sorted(arguments, key=lambda argument: argument[:1] == "~" or (argument[:1] != "-" and "=" in argument))


def split_help(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments with ``--help`` for ``--help all`` or ``--help=all``, and whether that is asked for."""
    words = [word for argument in arguments for word in (["--help", "all"] if argument == "--help=all" else [argument])]
    shows_all = "all" in words and not {"-h", "--help"}.isdisjoint(words)
    return [word for word in words if not shows_all or word != "all"], shows_all


def replace_resize_option(arguments: Sequence[str]) -> list[str]:
    """Replace ``--resize 256`` or ``--resize=256`` among the arguments by Hydra's ``resize=256``."""
    overrides: list[str] = []
    for argument in arguments:
        if overrides and overrides[-1] == "--resize":
            overrides[-1] = f"resize={argument}"
        else:
            overrides.append(argument.removeprefix("--") if argument.startswith("--resize=") else argument)
    return overrides


def check_choices(arguments: Sequence[str]) -> None:
    """Make sure that a group is given the name of a choice: for null and for numbers Hydra raises an exception.

    Of several choices Hydra would merge the files; only those of `MERGED` have values that belong together.

    Raises:
        InputError: if it is given something else.
    """
    is_sweep = asks_for_sweep(arguments)
    for argument in arguments:
        group, _, value = argument.partition("=")
        if group not in GROUPS:
            continue
        if re.fullmatch(r"null|true|false|[+-]?\d+(\.\d*)?|\{.*", value, re.IGNORECASE):
            choices = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
            shown = ", ".join(sorted(choices, key=lambda name: name != "none")[:3])
            raise InputError(f"{printable(argument)}: must be the name of a choice, such as {shown or 'a file there'}")
        names = value.strip("[]").replace(" ", "")
        is_refused = group not in MERGED if value.startswith("[") else not is_sweep
        if "," in names and re.fullmatch(r"[\w/,-]+", names) and is_refused:
            raise InputError(f"{argument}: must be one choice; -m {group}={names} runs each in turn")


def check_run_folders(arguments: Iterable[str]) -> None:
    """Make sure that no folder of results is empty, such as a variable of the shell that isn't set.

    The results would be written into the current folder.

    Raises:
        InputError: if one is.
    """
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and equals and value in ("", "''", '""', "null"):
            raise InputError(
                f"{argument}: names no folder; {key}=. is the current one, and without {key} a new one is made"
            )


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
    """Return the arguments with each path in quotes that Hydra would take for something else.

    So are other texts with letters that its grammar lacks, also in a list or a mapping. Quotes, interpolations and
    sweeps of the user's own are left alone.
    """
    is_sweep = asks_for_sweep(arguments)
    return [_quote_value(argument, is_sweep) for argument in arguments]


def _quote_value(argument: str, is_sweep: bool) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key[:1] in "-~" or "${" in value or value == "null":
        return argument
    is_listed = value[:1] in ("[", "{")
    is_path = key.lstrip("+") in PATHS or ("." in key and "/" in value and not is_listed)
    if not (is_path or is_listed) and value.isascii():
        return argument
    is_sweep &= not key.startswith("hydra.")  # Hydra's own keys have one value
    override = _parse(argument)
    is_users = value[:1] in ("'", '"') or (is_sweep and override is not None and override.is_sweep_override())
    if override is not None and (is_users or not is_path):
        return argument
    # a run stores other paths with their ``~``, for a machine on which the home folder is another
    is_stored = key not in RUN_KEYS and not key.startswith("hydra.")
    if is_path and not is_stored and value.startswith("~"):
        value = str(expand_home(value))
    if is_listed and not is_path:
        quoted = WORDS.sub(lambda word: word[0] if _parse(f"key={word[0]}") else quote(word[0].rstrip()), value)
    else:
        pieces = [piece.strip() for piece in value.split(",")] if is_sweep else [value]
        quoted = ",".join(piece if not is_path and _parse(f"key={piece}") else format_value(piece) for piece in pieces)
    return f"{key}={quoted}" if _parse(f"{key}={quoted}") else argument


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
