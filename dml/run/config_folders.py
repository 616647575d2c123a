"""The folders that configurations come from, the overrides of their values, and the resolvers that they call.

The folders are ``conf/`` and the user's on ``hydra.searchpath``. A value such as ``${new_folder:outputs/emoji}`` calls
the resolver of that name.
"""

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from dml.runtime.files import expand_home
from dml.runtime.processes import IS_INSTALLED, PACKAGE
from dml.runtime.run_folder import RunFolder, make_folder

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


def unless(value: Any, default: Any) -> Any:
    """Resolve ``${unless:VALUE,DEFAULT}``: null if there is a value, else the default."""
    return default if value is None else None


def learning_rate(default: float, *, _root_: DictConfig) -> float:
    """Resolve ``${learning_rate:DEFAULT}``: the rate that the model's file states for its weights.

    It is DEFAULT if the file states none, and with ``training.frozen``: heads alone would hardly learn at that rate.
    """
    stated = OmegaConf.select(_root_, "model.pretraining.lr")
    return default if stated is None or OmegaConf.select(_root_, "training.frozen") else float(stated)


def new_folder(path: str, *, _root_: DictConfig) -> str:
    """Resolve ``${new_folder:PATH}``, Hydra's folder of a run: make PATH, or PATH_2, PATH_3 and so on if it exists."""
    if OmegaConf.select(_root_, "hydra.runtime.cwd") is None:
        raise ValueError(f"new_folder {path}: the configuration isn't complete")
    folders = OmegaConf.get_cache(_root_)["new_folder"]  # Hydra resolves the folder of one run several times
    if path not in folders:
        name, number = path, 1
        while not make_folder(Path(name)):
            number += 1
            name = f"{path}_{number}"
        folders[path] = name
    return str(folders[path])


def evaluations_folder(other: str, *, _root_: DictConfig) -> str:
    """Resolve ``${evaluations_folder:OTHER}``: the folder that holds the folders in which ``checkpoint`` is tested.

    It is ``evaluations`` in the folder of the run that wrote the checkpoint, and OTHER for a checkpoint that isn't in a
    run's folder.
    """
    if OmegaConf.is_missing(_root_, "checkpoint") or not _root_.checkpoint:  # the job says so
        return other
    path = expand_home(str(_root_.checkpoint))
    for folder in path.absolute().parents[:2]:  # a copy may lie beside the run's other files
        run = RunFolder(folder if path.is_absolute() else os.path.relpath(folder))
        if run.last_checkpoint.exists() or (run.has_configuration and not run.is_evaluation):
            return str(run.evaluations_folder)
    return other


def resize_for(size: int) -> int:
    """Return the side that images are resized to before a crop of ``size`` pixels: 256 for 224, and in proportion."""
    return round(size * 256 / 224)


for resolver in (resize_for, learning_rate, unless, evaluations_folder, new_folder):
    OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
