"""What a run leaves behind to be taken up again: its overrides and its configuration."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError
from dml.ops.nested import flat, is_below

RUN_KEYS = ("resume", "checkpoint", "debug", "sweep", "launcher")
"""Keys that say how to run, not what."""


@dataclass(frozen=True)
class Stored:
    """The overrides that a run was started with, and the configuration, unresolved, that they gave."""

    overrides: list[str]
    config: dict[str, Any]


def checkpoint(folder: Path, name: str) -> Path:
    """Where a run keeps its "last" and its "best" checkpoint."""
    return folder / "checkpoints" / f"{name}.ckpt"


def fixed_neighbors(folder: Path) -> Path:
    """Where a run keeps the test images' neighbours that evaluation.fixed_neighbors asks for."""
    return folder / "fixed_neighbors.npz"


def is_finished(folder: Path) -> bool:
    """Whether the run in ``folder`` has come to its end."""
    return (folder / "metrics.json").exists()


def results(folder: Path) -> dict[str, Any]:
    """The contents of a finished run's metrics.json."""
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def of_run(folder: Path) -> Stored:
    """What the run in ``folder`` stored.

    Raises:
        InputError: if there is no run.
    """
    last = checkpoint(folder, "last")
    if last.exists():
        return of_checkpoint(last)
    overrides, config = folder / ".hydra" / "overrides.yaml", folder / ".hydra" / "config.yaml"
    if not overrides.exists() or not config.exists():
        raise InputError(f"resume={folder}: no run there; its folder has .hydra/ and checkpoints/")
    return Stored(_task_overrides(OmegaConf.load(overrides)), as_stored(OmegaConf.load(config)))


def of_checkpoint(path: Path) -> Stored:
    """What the run that wrote the checkpoint stored."""
    from dml.training.checkpoints import read_checkpoint

    run = read_checkpoint(path)["run"]
    return Stored(_task_overrides(run["overrides"]), run["config"])


def key_of(override: str) -> str:
    """``+loss.margin=0.2`` -> ``loss.margin``."""
    return override.partition("=")[0].lstrip("+~")


def _task_overrides(overrides: Any) -> list[str]:
    return [str(override) for override in overrides if key_of(str(override)).split(".")[0] not in RUN_KEYS]


def as_stored(config: Any) -> dict[str, Any]:
    """A configuration as plain values, interpolations unresolved."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return {key: value for key, value in plain.items() if key not in RUN_KEYS}


def check_unchanged(config: DictConfig, overrides: list[str], stored: Stored, parts: tuple[str, ...] = ()) -> None:
    """Makes sure that the stored overrides still compose to the stored configuration.

    Args:
        config: composed of the stored overrides and the new ones.
        overrides: all of them.
        stored: what the run stored.
        parts: top-level keys to compare; none means all.

    Raises:
        InputError: if a value differs that no new override names, because ``conf/`` has changed since.
    """
    new = [override for override in overrides if override not in stored.overrides]
    asked = [key_of(override) for override in new]
    anything = "experiment" in asked  # which may change every key
    now, then = flat(as_stored(config)), flat(stored.config)
    for key in sorted(now.keys() | then.keys()):
        chosen = not parts or key.split(".")[0] in parts
        if chosen and now.get(key) != then.get(key) and not (anything or is_below(key, asked)):
            raise InputError(
                f"{key}={now.get(key)}: the run was made with {then.get(key)}, and conf/ has changed since; "
                f"give {key}={then.get(key)} to keep it"
            )
