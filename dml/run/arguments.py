"""Paths on the command line: they mean what they say, where Hydra would read lists, sweeps and dictionaries."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString

from dml.ops.paths import expand_home

HOW_TO_RUN = ("resume", "checkpoint", "hydra.run.dir", "hydra.sweep.dir")
"""Keys of paths that a run doesn't store; their ``~`` is replaced at once."""
STORED = ("dataset.root", "data.cache", "init", "model.backbone.weights")
"""Keys of paths that a run stores as they were given, for a machine on which the home folder is another."""
PLAIN = re.compile(r"null|[\w./-]*/[\w./-]*|")
"""Text that Hydra takes as it is; without a slash it may look like a number."""


def quote(path: str | Path) -> str:
    """Return a path in quotes, as the value of an override that Hydra reads back unchanged."""
    return str(QuotedString(str(path), Quote.single).with_quotes())


def quote_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each path quoted that Hydra would take for something else.

    Quotes and interpolations of the user's own are left alone. So are commas and parentheses in a sweep, where they
    stand for several values.
    """
    is_sweep = bool({"-m", "--multirun"} & set(arguments))
    return [argument if is_sweep and set("(,") & set(argument) else _quote_path(argument) for argument in arguments]


def _quote_path(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key.lstrip("+") not in HOW_TO_RUN + STORED or value[:1] in ("'", '"') or "${" in value:
        return argument
    path = str(expand_home(value)) if key in HOW_TO_RUN and value.startswith("~") else value
    return argument if PLAIN.fullmatch(value) and path == value else f"{key}={quote(path)}"


def path_given(arguments: Sequence[str], key: str) -> Path | None:
    """Return the path that the arguments give for ``key``, such as "resume"; None if they give none, or null.

    Raises:
        HydraException: if its quotes are never closed.
    """
    given = [argument for argument in arguments if argument.partition("=")[0] == key]
    value = given[-1].partition("=")[2] if given else ""
    if value[:1] in ("'", '"'):
        value = str(OverridesParser.create().parse_override(given[-1]).value())
    return expand_home(value) if value not in ("", "null") else None
