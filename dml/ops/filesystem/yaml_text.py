"""The one way in which YAML is read, but for configurations that Hydra composes."""

from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast as Python's; a PyYAML that was built without it has Python's alone."""

DEEPEST = 100
"""The largest number of lists and mappings within each other. Many thousands would end the process in libyaml."""


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text: plain values, lists and dictionaries.

    Raises:
        yaml.YAMLError: if the text is no YAML, or nests more than `DEEPEST` lists and mappings.
        ValueError: if it holds a date that doesn't exist, such as 2000-13-01.
    """
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} lists and mappings within each other")
    return yaml.load(text, LOADER)  # noqa: S506  both loaders are safe
