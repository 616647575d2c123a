"""What a run leaves behind to be taken up again: its overrides and its configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError
from dml.ops.nested import flat, is_below
from dml.ops.run_folder import RUN_KEYS, RunFolder, without_run_keys


@dataclass(frozen=True)
class Stored:
    """The overrides that a run was started with, and the configuration, unresolved, that they gave."""

    overrides: list[str]
    config: dict[str, Any]


def of_run(folder: RunFolder) -> Stored:
    """What the run in ``folder`` was last started with.

    Raises:
        InputError: if there is no run.
    """
    if folder.has_configuration:
        return Stored(_task_overrides(folder.overrides), folder.config)
    if folder.last_checkpoint.exists():
        return of_checkpoint(folder.last_checkpoint)
    raise InputError(f"resume={folder.path}: no run there; its folder has .hydra/ and checkpoints/")


def of_checkpoint(path: Path) -> Stored:
    """What the run that wrote the checkpoint stored."""
    from dml.training.checkpoints import read_checkpoint

    run = read_checkpoint(path)["run"]
    return Stored(_task_overrides(run["overrides"]), run["config"])


def write_configuration(folder: RunFolder, config: DictConfig, overrides: list[str]) -> None:
    """Writes `.hydra/` of a run that begins or goes on, as Hydra does; a job that Hydra didn't start has no choices."""
    hydra: Any = HydraConfig.instance().cfg
    folder.write_configuration(*map(OmegaConf.to_yaml, (config, {} if hydra is None else hydra, overrides)))


def key_of(override: str) -> str:
    """``+loss.margin=0.2`` -> ``loss.margin``."""
    return override.partition("=")[0].lstrip("+~")


def _task_overrides(overrides: Any) -> list[str]:
    return [str(override) for override in overrides if key_of(str(override)).split(".")[0] not in RUN_KEYS]


def as_stored(config: Any) -> dict[str, Any]:
    """A configuration as plain values, interpolations unresolved."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return without_run_keys(plain)


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
