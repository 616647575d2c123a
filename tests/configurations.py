"""Configurations of `conf/`; a test session composes each once, since composing one takes longer than most tests."""

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

CONF = Path(__file__).parents[1] / "conf"


def compose(*overrides: str, command: str = "train") -> DictConfig:
    """Compose the configuration of a command line, which the caller may change."""
    config: DictConfig = pickle.loads(_compose_once(command, overrides))
    return config


@cache
def _compose_once(command: str, overrides: tuple[str, ...]) -> bytes:
    """Compose a configuration, and pickle it: to read it takes a quarter of the time of a copy."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return pickle.dumps(hydra.compose(command, overrides=list(overrides)))


def keep_results(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Return the function with a memory that the processes of a test session share.

    Args:
        function: a function of texts and tuples of texts, which has no memory itself.
        folder: the session's folder for the results.
    """

    @cache
    def keep(*arguments: Any) -> Any:
        name = hashlib.sha256(repr((function.__qualname__, arguments)).encode()).hexdigest()
        path = folder / f"{name}.pickle"
        if path.exists():
            return pickle.loads(path.read_bytes())
        result = function(*arguments)
        partial = folder / f"{name}.{os.getpid()}.partial"
        partial.write_bytes(pickle.dumps(result))
        partial.replace(path)
        return result

    return keep
