"""The values that the interpolations of a stored configuration stand for."""

from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.run import resolvers  # noqa: F401 (registers them)


def resolve_values(config: dict[str, Any], unresolved: str) -> dict[str, Any]:
    """Return a configuration in which each interpolation is replaced by its value.

    It stays as it is if it follows from the key ``unresolved``, or has a value only while Hydra composes, such as
    ``${hydra:runtime.choices.loss}``.

    >>> resolve_values({"lr": 0.1, "seed": 3, "sgd": {"lr": "${lr}"}, "split": {"seed": "${seed}"}}, unresolved="seed")
    {'lr': 0.1, 'seed': 3, 'sgd': {'lr': 0.1}, 'split': {'seed': '${seed}'}}

    Args:
        config: configuration of plain values.
        unresolved: a key at the top of the configuration, such as "seed".
    """
    tree = OmegaConf.create(config | {unresolved: "???"})  # marked as missing: nothing can follow from it
    resolved = _resolve(tree)
    return {key: config[key] if key == unresolved else resolved[key] for key in config}


def _resolve(node: DictConfig | ListConfig) -> Any:
    if isinstance(node, DictConfig):
        return {key: _resolve_entry(node, key) for key in node}
    return [_resolve_entry(node, index) for index in range(len(node))]


def _resolve_entry(node: DictConfig | ListConfig, key: Any) -> Any:
    try:
        value = node[key]
    except OmegaConfBaseException:
        plain: Any = OmegaConf.to_container(node, resolve=False)
        return plain[key]
    return _resolve(value) if isinstance(value, DictConfig | ListConfig) else value
