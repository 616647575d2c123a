"""The folders that configurations come from, ``conf/`` and the user's on ``hydra.searchpath``, and the overrides."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from dml.runtime.processes import IS_INSTALLED, PACKAGE

FILE = "file://"

CONF = PACKAGE / "conf" if IS_INSTALLED else PACKAGE.parent / "conf"
"""The project's configurations: in an installed package, or at the top of a checkout."""

GROUPS = frozenset(path.name for path in CONF.iterdir() if path.is_dir())
"""The keys that choose a configuration of a group."""

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


def list_overrides(hydra: Any) -> list[str]:
    """Return the overrides of a run as it stores them, for people: its values are stored beside them."""
    task = OmegaConf.select(hydra, "overrides.task") or OmegaConf.create([])
    typed: Any = OmegaConf.to_container(task, resolve=False)
    return [*search_path_overrides(hydra), *typed]


def search_path_overrides(hydra: Any) -> list[str]:
    """Return the override that gives another run the user's folders of configurations; none if there are none.

    A run stores it, as Hydra stores no override of its own keys.
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
