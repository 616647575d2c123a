"""The folders that configurations come from, ``conf/`` and the user's on ``hydra.searchpath``, and the overrides."""

import re
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf

from dml.ops.paths import IS_INSTALLED, PACKAGE

FILE = "file://"

CONF = PACKAGE / "conf" if IS_INSTALLED else PACKAGE.parent / "conf"
"""The project's configurations: in an installed package, or at the top of a checkout."""

GROUPS = frozenset(path.name for path in CONF.iterdir() if path.is_dir())
"""The keys that choose a configuration of a group."""

REFERENCE = re.compile(r"\$\{[\w.\[\]-]*\}")
"""An interpolation of another value of the configuration, as opposed to one that calls a resolver."""


def list_overrides(hydra: Any) -> list[str]:
    """Return the overrides of a run as it stores them.

    References to other values, such as ``${dataset.root}``, stay as they are. What a resolver returns, such as the
    value of ``${oc.env:DATA}``, replaces the call.

    Args:
        hydra: the configuration below ``hydra``.
    """
    task = OmegaConf.select(hydra, "overrides.task", default=[])
    texts: Any = OmegaConf.to_container(task, resolve=False) if OmegaConf.is_config(task) else task
    stored = [str(task[index]) if calls_resolver(text) else text for index, text in enumerate(texts)]
    return [*search_path_overrides(hydra), *stored]


def calls_resolver(text: str) -> bool:
    """Return whether a string calls a resolver, as ``${oc.env:HOME}`` does, or may be a part of such a call."""
    before = None
    while text != before:
        before, text = text, REFERENCE.sub("x", text)
    return "${" in text


def search_path_overrides(hydra: Any) -> list[str]:
    """Return the override that gives another run the user's folders of configurations; none if there are none.

    A run stores it, as Hydra stores no override of its own keys.

    Args:
        hydra: the configuration below ``hydra``.

    Returns:
        ``hydra.searchpath=[...]`` with absolute paths, as another run may be started in another folder; or nothing.
    """
    folders = [_make_absolute(str(folder)) for folder in hydra.get("searchpath") or ()]
    return [f"hydra.searchpath=[{','.join(quote(folder) for folder in folders)}]"] if folders else []


def _make_absolute(folder: str) -> str:
    scheme, separator, path = folder.partition("://")
    if not separator:
        return f"{FILE}{Path(folder).resolve()}"
    return f"{FILE}{Path(path).resolve()}" if scheme == "file" else folder


def quote(path: str | Path) -> str:
    """Return a path in quotes, as the value of an override that Hydra reads back unchanged."""
    return str(QuotedString(str(path), Quote.single).with_quotes())
