"""The overrides and the configuration that a run stores, with which it is resumed or tested again."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.run.config_folders import CONF, format_value
from dml.run.settings import Key, all_keys, list_keys
from dml.runtime.configuration import flat, is_below, key_of
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RUN_KEYS, RunFolder, newest_runs, without_run_keys
from dml.runtime.targets import TARGET, unknown_targets
from dml.runtime.text import printable

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
    if isinstance(plain, str) and ENVIRONMENT.search(plain):
        return _resolve_entry(node, key, plain)
    if isinstance(plain, dict):
        return {inner: _fill_in(node[key], inner, value, f"{path}.{inner}") for inner, value in plain.items()}
    if isinstance(plain, list):
        return [_fill_in(node[key], index, value, f"{path}.{index}") for index, value in enumerate(plain)]
    return plain


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


LEARNING_RATE, FORMER_LEARNING_RATE = "${learning_rate:3.0e-4}", "${oc.select:model.pretraining.lr,3.0e-4}"
"""The default of ``optimizer.lr``, and that of older versions, which is the same number without ``training.frozen``."""


@dataclass(frozen=True)
class StoredConfiguration:
    """The overrides that a run was started with, and the configuration that they gave, see `plain_config`."""

    overrides: list[str]
    config: dict[str, Any]


def read_stored_configuration(folder: RunFolder) -> StoredConfiguration:
    """Read the overrides and configuration that the run in a folder was last started with.

    Raises:
        InputError: if there is no run in the folder, or only the evaluation of one.
    """
    if folder.is_evaluation:
        raise InputError(f"resume={folder.path}: a test of a checkpoint, which has no training to go on with")
    if folder.has_configuration:
        return StoredConfiguration(_task_overrides(folder.overrides), folder.config)
    if folder.last_checkpoint.exists():
        return read_checkpoint_configuration(folder.last_checkpoint)
    is_checkpoint = folder.path.suffix == ".ckpt" and folder.path.is_file()
    run = RunFolder.from_checkpoint(folder.path) if is_checkpoint else next(newest_runs(folder.path), None)
    remedy = f"; {shlex.quote(f'resume={run.path}')} goes on with the nearest run" if run else ""
    raise InputError(f"resume={folder.path}: no run there; its folder has .hydra/ and checkpoints/{remedy}")


def read_checkpoint_configuration(path: Path) -> StoredConfiguration:
    """Read the overrides and configuration in a checkpoint."""
    from dml.training.checkpoints import read_checkpoint

    return extract_configuration(read_checkpoint(path, lazily=True))


def keep_choices(stored: StoredConfiguration, arguments: Sequence[str]) -> list[str]:
    """Return the overrides that test a run on other data with the run's choices that its data set may have made.

    Args:
        stored: overrides and configuration that the run stored.
        arguments: the overrides of the test; without ``dataset`` nothing is needed.

    Raises:
        InputError: if the overrides give another transform than the run had, because ``conf/`` has changed since.
    """
    keys = {key_of(argument) for argument in arguments}
    groups = [group for group in ("transform", "sampler", "loss") if group not in keys]
    if "dataset" not in keys or not groups:
        return []
    searched = [argument for argument in arguments if key_of(argument) == "hydra.searchpath"]
    overrides = [override for override in stored.overrides if not is_below(key_of(override), ["hydra"])]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[*searched, *overrides], return_hydra_config=True)
    choices = config.hydra.runtime.choices
    transform = plain_config(OmegaConf.masked_copy(config, "transform"))["transform"]
    if "transform" in groups and transform != stored.config.get("transform"):
        raise InputError(
            f"transform: the run's is not transform={choices.transform} as conf/ has it now; give the one that it was "
            "trained with, such as transform=emoji"
        )
    return [f"{group}={choice}" for group in groups if (choice := choices[group]) is not None]


def extract_configuration(checkpoint: Mapping[str, Any]) -> StoredConfiguration:
    """Return the overrides and configuration among the contents of a checkpoint."""
    run = checkpoint["run"]
    return StoredConfiguration(_task_overrides(run["overrides"]), run["config"])


def write_configuration(folder: RunFolder, config: DictConfig, overrides: list[str]) -> None:
    """Write `.hydra/` of a run, as Hydra does, and begin its log; without the choices if Hydra didn't start the job."""
    hydra: Any = HydraConfig.instance().cfg
    if hydra is not None:
        console.begin_log(folder.path / f"{hydra.hydra.job.name}.log")
    written = _without_defaults(resolve_environment(config))
    folder.write_configuration(*map(OmegaConf.to_yaml, (written, {} if hydra is None else hydra, overrides)))


def _task_overrides(overrides: Any) -> list[str]:
    return [override for override in map(str, overrides) if key_of(override).split(".")[0] not in RUN_KEYS]


def plain_config(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values, without `RUN_KEYS`, and without what `_without_defaults` removes.

    Interpolations stay unresolved, except those that read the environment: another value there is another run.
    """
    return without_run_keys(_without_defaults(resolve_environment(config)))


def _without_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the unset values of `without_unset`; the default learning rate becomes that of older versions.

    By this, a run has the identity that it had before these options existed: sweeps and tables find their
    finished runs.
    """
    remaining = without_unset(config)
    optimizer = config.get("optimizer")
    if (
        isinstance(optimizer, dict)
        and optimizer.get("lr") == LEARNING_RATE
        and not (config.get("training") or {}).get("frozen")
    ):
        remaining["optimizer"] = optimizer | {"lr": FORMER_LEARNING_RATE}
    return remaining


def without_unset(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration without the keys that older versions lacked, if their values do as those versions did."""
    return {
        name: without_unset(value, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in config.items()
        if (facts := all_keys().get(f"{prefix}{name}")) is None or not _is_unset(value, facts)
    }


def _is_unset(value: Any, facts: Key) -> bool:
    lacks_needed = facts.needs is not None and isinstance(value, dict) and value.get(facts.needs) is None
    return lacks_needed or value is facts.unset


def check_unchanged(
    config: DictConfig, overrides: list[str], stored: StoredConfiguration, parts: tuple[str, ...] = ()
) -> None:
    """Make sure that the stored overrides still compose to the stored configuration.

    Args:
        config: configuration composed of the stored overrides and the new ones.
        overrides: the stored overrides and the new ones.
        stored: overrides and configuration that the run stored.
        parts: top-level keys to compare; none means all.

    Raises:
        InputError: if a value differs that no new override names: ``conf/`` or the environment has changed since.
    """
    latest = {key_of(override): override for override in stored.overrides}  # of several the last one counts
    new = [override for override in overrides if override != latest.get(key_of(override))]
    new_keys = [key_of(override) for override in new]
    may_change_all = "experiment" in new_keys
    now, then = flat(plain_config(config)), flat(stored.config)
    # an override may be stored with the value that an interpolation had, while the configuration has the interpolation
    resolved = {key for key in latest if "${" in str(then.get(key))}
    changed = [
        key
        for key in sorted(now.keys() | then.keys())
        if (not parts or key.split(".")[0] in parts)
        and key not in resolved
        and not is_below(key, ["evaluation.threshold"])  # a test chooses it as its own version does
        and now.get(key) != then.get(key)
        and not (may_change_all or is_below(key, new_keys))
    ]
    if changed:
        first, *_ = changed
        before = {key: {key.rpartition(".")[2]: then[key]} for key in changed if key in then}
        if foreign := [path for path, _ in unknown_targets(before) if path.endswith(TARGET)]:
            raise InputError(
                f"{printable(foreign[0])}: the run was made with other code, which conf/ no longer names; a new run is "
                "needed"
            )
        overrides_as_before = " ".join(_format_override(key, then.get(key)) for key in changed)
        raise InputError(
            f"{_format_override(first, now.get(first))}: the run was made with {format_value(then.get(first))}, and "
            f"conf/ or the environment has changed since; give {overrides_as_before} to go on as before"
        )


def _format_override(key: str, value: Any) -> str:
    """Return an override as a shell takes it."""
    return shlex.quote(f"{key}={format_value(value)}")
