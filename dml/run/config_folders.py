"""The folders that configurations come from, ``conf/`` and the user's on ``hydra.searchpath``, and the overrides."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from dml.runtime.processes import IS_INSTALLED, PACKAGE

FILE = "file://"

CONF = PACKAGE / "conf" if IS_INSTALLED else PACKAGE.parent / "conf"
"""The project's configurations: in an installed package, or at the top of a checkout."""

GROUPS = frozenset(path.name for path in CONF.iterdir() if path.is_dir())
"""The keys that choose a configuration of a group."""

REFERENCE = re.compile(r"\$\{[\w.\[\]-]*\}")
"""An interpolation of another value of the configuration, as opposed to one that calls a resolver."""

PLAIN_WORD = re.compile(r"(?!(null|true|false|inf|nan)$)[a-z_/][\w./@+-]*", re.ASCII | re.IGNORECASE)
"""A text that Hydra reads back as it is without quotes."""


def compose_training(words: Sequence[str]) -> DictConfig:
    """Compose the configuration of ``dml train`` with these words of the command line, also while a command runs."""
    is_in_command = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_in_command else initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[*words])


def pretrained_name(place: str | Path) -> str | None:
    """Return NAME if the place of a model is "pretrained:NAME", and else None."""
    prefix, separator, name = str(place).partition(":")
    return name if (prefix, separator) == ("pretrained", ":") else None


def list_network_overrides(name: str) -> list[str]:
    """Return the overrides that choose a network: a choice of ``conf/model``, or any other name of timm."""
    is_choice = (CONF / "model" / f"{name}.yaml").exists()
    return [f"model={name}"] if is_choice else ["model=timm", f"model.backbone.name={quote(name)}"]


def list_overrides(hydra: Any, config: DictConfig) -> list[str]:
    """Return the overrides of a run as it stores them.

    References to other values, such as ``${dataset.root}``, stay as they are. What a resolver returns, such as the
    value of ``${oc.env:DATA}``, replaces the call.

    Args:
        hydra: the configuration below ``hydra``.
        config: configuration of the run, in which the references are looked up.
    """
    task = OmegaConf.select(hydra, "overrides.task", default=[])
    texts: Any = OmegaConf.to_container(task, resolve=False) if OmegaConf.is_config(task) else task
    stored = [_resolve_override(text, config) if calls_resolver(text) else text for text in texts]
    return [*search_path_overrides(hydra), *stored]


def _resolve_override(text: str, config: DictConfig) -> str:
    """Return an override with the value of its interpolations, which is written as its type: 0.1 is no text."""
    value = OverridesParser.create().parse_override(text).value()
    resolved: Any = OmegaConf.to_container(OmegaConf.create([value], parent=config), resolve=True)
    return f"{text.partition('=')[0]}={format_value(resolved[0])}"


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


def format_value(value: Any, *, in_quotes: bool = True) -> str:
    """Return a value in the grammar of Hydra's overrides, with quotes around texts that need them.

    >>> format_value({"lr": 1e-4, "names": ["sop", "two words", "1"], "root": None})
    "{lr:0.0001,names:[sop,'two words','1'],root:null}"
    """
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_value(inner, in_quotes=in_quotes)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(format_value(inner, in_quotes=in_quotes) for inner in value)}]"
    if isinstance(value, str):
        return quote(value) if in_quotes and not PLAIN_WORD.fullmatch(value) else value
    return "null" if value is None else str(value).lower()


def quote(path: str | Path) -> str:
    """Return a path in quotes, as the value of an override that Hydra reads back unchanged."""
    return str(QuotedString(str(path), Quote.single).with_quotes())
