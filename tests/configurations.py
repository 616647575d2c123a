"""Configurations of `conf/`; a test session composes each once, since composing one takes longer than most tests."""

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from dml.run.settings import Settings, read_settings

CONF = Path(__file__).parents[1] / "conf"
PARSER = OverridesParser.create()
VALUE = re.compile(r"(\+\+)?(?!hydra\.)\w+\.[\w.]+=")
"""How an override begins that sets a value; others may choose files."""


def compose(*overrides: str, command: str = "train") -> DictConfig:
    """Compose the configuration of a command line, which the caller may change.

    Hydra composes what chooses files; values are put into the result, as it would do, which is quick.
    """
    values = [override for override in overrides if VALUE.match(override)]
    choices = tuple(override for override in overrides if override not in values)
    config: DictConfig = pickle.loads(_compose_once(command, choices))
    for override in PARSER.parse_overrides(values):
        adds = override.is_add() or override.is_force_add()
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=adds)
    return config


def settings_of(config: DictConfig) -> Settings:
    """Return the settings of a training that a configuration holds."""
    return read_settings(config, Settings)


@cache
def _compose_once(command: str, overrides: tuple[str, ...]) -> bytes:
    """Compose a configuration, and pickle it: to read it takes a quarter of the time of a copy."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return pickle.dumps(hydra.compose(command, overrides=list(overrides)))


class SharedResults:
    """Pickled results that the processes of a test session share, each computed by the first that needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Hashable, bytes] = {}

    def recall(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return a copy of what was computed for this key, of texts, numbers and tuples."""
        if key not in self._known:
            self._known[key] = self._read_or_compute(key, compute)
        return pickle.loads(self._known[key])

    def _read_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> bytes:
        path = self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.pickle"
        if path.exists():
            return path.read_bytes()
        result = pickle.dumps(compute())
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(result)
        partial.replace(path)
        return result


def keep_results(function: Callable[..., Any], results: SharedResults) -> Callable[..., Any]:
    """Return the function, of texts and tuples of texts and without a memory of its own, with one that is shared."""

    def keep(*arguments: Any) -> Any:
        return results.recall((function.__qualname__, arguments), lambda: function(*arguments))

    return keep
