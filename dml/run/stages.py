"""The stages of a run: trainings one after the other, each of which goes on with the weights of the one before."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from dml.ops.errors import InputError


@dataclass(frozen=True)
class Stage:
    """One training of a run.

    Args:
        name: "" for the only one.
        config: the run's configuration with the stage's own values.
    """

    name: str
    config: DictConfig


def stages(config: DictConfig) -> list[Stage]:
    """The stages of a configuration in order: each of ``stages`` is what it changes of the rest.

    A part with a ``_target_`` of its own stands in the place of the whole part, anything else changes single values.
    Without ``stages`` the run has one.
    """
    return [Stage(str(name), _changed(config, name)) for name in config.stages] or [Stage("", config)]


def stage(config: DictConfig, name: str) -> Stage:
    """The stage of that name.

    Raises:
        InputError: if there is none.
    """
    for found in stages(config):
        if found.name == name:
            return found
    raise InputError(
        f"checkpoint of stage {name or '(none)'}: this run's stages are {', '.join(config.stages) or 'none'}"
    )


def _changed(config: DictConfig, name: Any) -> DictConfig:
    changed = config.copy()
    with open_dict(changed):
        changed.stages = {}
    changes: Any = OmegaConf.to_container(config.stages, resolve=False)
    for path, value in _leaves(changes[name]):
        OmegaConf.update(changed, path, value, merge=False)
    return changed


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of what a stage changes, interpolations unresolved."""
    if isinstance(content, dict) and "_target_" not in content and (content or not path):
        for key, value in content.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content
