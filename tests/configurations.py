"""Configurations of `conf/`; a test session composes each once, since composing one takes longer than most tests."""

import hashlib
import os
import pickle
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from dml.run.settings import Settings, read_settings

CONF = Path(__file__).parents[1] / "conf"


def compose(*overrides: str, command: str = "train") -> DictConfig:
    """Compose the configuration of a command line, which the caller may change."""
    config: DictConfig = pickle.loads(_compose_once(command, overrides))
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
    """Pickled results that the processes of a test session share, each computed by the first that needs it.

    Args:
        folder: the session's folder for the results.
    """

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
