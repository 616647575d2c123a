"""The one way in which YAML and JSON are read, but for configurations that Hydra composes.

A file may be a stranger's, so its content is bounded: a few bytes of YAML can stand for a billion values, and thousands
of lists within each other end the process in a parser.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast as Python's; a PyYAML that was built without it has Python's alone."""

DEEPEST = 100
"""The largest number of lists and mappings within each other."""

MOST_BYTES = 2**26
"""The largest size of a file."""

MOST = 500_000
"""The largest number of values in a text."""


def read_bounded(path: Path) -> bytes:
    """Read a file whose content is a YAML or JSON text.

    Raises:
        ValueError: if it is larger than `MOST_BYTES`.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return content


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text: plain values, lists and dictionaries.

    Raises:
        yaml.YAMLError: if the text is no YAML.
        ValueError: if it holds a date that doesn't exist, such as 2000-13-01, or isn't as `check_plain` wants it.
    """
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and mappings within each other")
    return check_plain(yaml.load(text, LOADER))  # noqa: S506  both loaders are safe


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text: plain values, lists and dictionaries.

    Raises:
        ValueError: if the text is no JSON, or isn't as `check_plain` wants it.
    """
    try:
        return check_plain(json.loads(text))
    except RecursionError as error:
        raise ValueError(f"more than {DEEPEST} lists and mappings within each other") from error


def check_plain(content: Any) -> Any:
    """Return values out of a file if a program can walk through them: they are bounded, and none contains itself.

    Raises:
        ValueError: if they nest more than `DEEPEST` lists and mappings, or are more than `MOST`; a value that several
            places share counts in each of them.
    """
    count, depth, level = 1, 0, [content]
    while level := [node for node in level if isinstance(node, Mapping | list | tuple | set)]:
        count, depth = count + sum(map(len, level)), depth + 1
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and mappings within each other")
        if count > MOST:
            raise ValueError(f"more than {MOST:,} values")
        level = [value for node in level for value in (node.values() if isinstance(node, Mapping) else node)]
    return content
