"""The values that the interpolations of a stored configuration stand for."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.run.settings import list_keys
from dml.runtime.configuration import is_below
from dml.runtime.run_folder import RUN_KEYS

ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
"""A call that reads a variable of the environment."""

OTHER_CALL = re.compile(r"\$\{(?!([\w.\[\]-]*\}|(learning_rate|oc\.select|resize_for|unless):))")
"""A call of a resolver that doesn't compute its value from the configuration alone, or what may be a part of one."""


def resolve_environment(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values, in which the values of the environment's variables replace their calls.

    A text that calls ``oc.env`` is replaced by its value. All other interpolations stay as they are, and so do those
    that can't be resolved, and those below `RUN_KEYS` and the keys that keep it: a logger may take a secret, and a
    requeued job of Slurm may get other nodes.

    Args:
        config: configuration of a run, of one of its stages, or of both Hydra and a run.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return {key: _fill_in(config, key, value, str(key)) for key, value in plain.items()}


def _fill_in(node: Any, key: Any, plain: Any, path: str) -> Any:
    """Return the plain value of a key in a node, with the environment's values in it; ``path`` is its dotted key."""
    if is_below(path, RUN_KEYS + list_keys("keeps_environment")):
        return plain
    if _reads_environment(plain):
        return _resolve_entry(node, key, plain)
    if isinstance(plain, dict):
        return {inner: _fill_in(node[key], inner, value, f"{path}.{inner}") for inner, value in plain.items()}
    if isinstance(plain, list):
        return [_fill_in(node[key], index, value, f"{path}.{index}") for index, value in enumerate(plain)]
    return plain


def _reads_environment(value: Any) -> bool:
    return isinstance(value, str) and bool(ENVIRONMENT.search(value))


def resolve_values(config: dict[str, Any], unresolved: str) -> dict[str, Any]:
    """Return a configuration in which each interpolation is replaced by its value.

    It stays as it is if it follows from the key ``unresolved`` or from a variable of the environment, which may have
    changed since the run, or if it has a value only while Hydra composes, such as ``${hydra:runtime.choices.loss}``.

    >>> resolve_values({"lr": 0.1, "seed": 3, "sgd": {"lr": "${lr}"}, "split": {"seed": "${seed}"}}, unresolved="seed")
    {'lr': 0.1, 'seed': 3, 'sgd': {'lr': 0.1}, 'split': {'seed': '${seed}'}}

    Args:
        config: configuration of plain values.
        unresolved: a key at the top of the configuration, such as "seed".
    """
    tree = open_stored(config | {unresolved: "???"})  # nothing can follow from what is marked as missing
    resolved = _resolve(tree, config | {unresolved: None})
    return {key: config[key] if key == unresolved else resolved[key] for key in config}


def open_stored(config: Mapping[str, Any]) -> DictConfig:
    """Return a stored configuration, whose interpolations are resolved when they are read.

    It may be a stranger's, so a value is marked as missing if resolving it would read or write anything but the
    configuration itself, such as a variable of the environment.
    """
    opened: DictConfig = OmegaConf.create(_without_calls(config))
    return opened


def _without_calls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_calls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_calls(inner) for inner in value]
    return "???" if isinstance(value, str) and OTHER_CALL.search(value) else value


def _resolve(node: DictConfig | ListConfig, plain: Any) -> Any:
    """Return the values of a node, and of ``plain``, which it was made of, where they can't be resolved."""
    if isinstance(node, DictConfig):
        return {key: _resolve_entry(node, key, plain[key]) for key in node}
    return [_resolve_entry(node, index, plain[index]) for index in range(len(node))]


def _resolve_entry(node: DictConfig | ListConfig, key: Any, plain: Any) -> Any:
    try:
        value = node[key]
    except OmegaConfBaseException:
        return plain
    if not isinstance(value, DictConfig | ListConfig):
        return value
    return _resolve(value, plain if isinstance(plain, dict | list) else OmegaConf.to_container(value, resolve=False))
