"""The values that a run stores, and what resumes it, tests it or opens its model with them.

They are in each checkpoint and, before there is one, in ``.hydra/config.yaml``: plain values, in which an interpolation
of other values stays one. Whatever the command line doesn't name is taken from there. Hydra composes both: the stored
parts are choices of its groups, as the files of ``conf/`` are.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.run import building
from dml.run.config_folders import GROUPS, format_value
from dml.run.settings import SETTINGS, TRAINED, list_declared
from dml.run.stages import list_stages, resolve_parts
from dml.runtime.configuration import flat, is_below, key_of
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RUN_KEYS, RunFolder, newest_runs, without_run_keys
from dml.runtime.text import console, in_markup

if TYPE_CHECKING:
    from dml.training.checkpoints import TrainingProgress

STORED = "stored"
"""The name of a stored part among the choices of its group."""

CALL = re.compile(r"\$\{(?!([\w.\[\]-]*\}|(learning_rate|oc\.select|resize_for|unless):))")
"""A call of a resolver that reads more than the configuration, such as the environment, or what may be part of one."""

PROCESSES = ("accelerator", "devices", "num_nodes", "strategy", "sync_batchnorm")
"""The arguments of the trainer that say how many processes train, and how: what ``trainer=ddp`` chooses."""

NEW_VALUES = (
    *("data", "dataset.root", "evaluation", "logger", "model.backbone.weights", "optimizer.lr"),
    *("checkpoints.every_n_seconds", "checkpoints.every_n_steps", "checkpoints.patience"),
    *("trainer.enable_progress_bar", "trainer.log_every_n_steps"),
    *("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.min_steps"),
    *(f"trainer.{name}" for name in PROCESSES),
)
"""The keys that a resumed run may have new values of, but `KEPT`."""

KEPT = ("evaluation.selection",)


@dataclass(frozen=True)
class StoredRun:
    """What a run stored: the overrides that it was started with, for people, and its values."""

    overrides: list[str]
    config: dict[str, Any]


def plain_config(config: DictConfig) -> dict[str, Any]:
    """Return the values of a run as it stores them: without Hydra's and `RUN_KEYS`, references to others unresolved.

    What reads the environment, or anything else outside of the configuration, is replaced by its value; but in
    ``logger``, where it may be a secret.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return {
        str(key): value if key == "logger" else _resolve_calls(config, key, value)
        for key, value in without_run_keys(plain).items()
        if key != "hydra"
    }


def _resolve_calls(node: Any, key: Any, plain: Any) -> Any:
    if isinstance(plain, dict):
        return {inner: _resolve_calls(node[key], inner, value) for inner, value in plain.items()}
    if isinstance(plain, list):
        return [_resolve_calls(node[key], index, value) for index, value in enumerate(plain)]
    if not (isinstance(plain, str) and CALL.search(plain)):
        return plain
    try:
        value = node[key]
    except OmegaConfBaseException:  # it has a value only while Hydra composes
        return plain
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def open_stored(values: Mapping[str, Any]) -> DictConfig:
    """Return stored values as a configuration, whose interpolations are resolved when they are read.

    They may be a stranger's, so a `CALL` counts as missing.
    """
    opened: DictConfig = OmegaConf.create(_without_calls(values))
    return opened


def _without_calls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_calls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_calls(inner) for inner in value]
    return "???" if isinstance(value, str) and CALL.search(value) else value


def read_stored_run(folder: RunFolder) -> StoredRun:
    """Read what the run in a folder stored last."""
    if folder.last_checkpoint.exists():
        stored = read_checkpoint_run(folder.last_checkpoint)
        return _take_newer(stored, folder) if folder.has_configuration else stored
    if folder.is_evaluation:
        raise InputError(f"resume={folder.path}: a test of a checkpoint, which has no training to go on with")
    if folder.has_configuration:
        return StoredRun(_without_run_keys(folder.overrides), folder.config)
    is_checkpoint = folder.path.suffix == ".ckpt" and folder.path.is_file()
    run = RunFolder.from_checkpoint(folder.path) if is_checkpoint else next(newest_runs(folder.path), None)
    remedy = f"; {shlex.quote(f'resume={run.path}')} goes on with the nearest run" if run else ""
    raise InputError(f"resume={folder.path}: no run there; its folder has .hydra/ and checkpoints/{remedy}")


def _take_newer(stored: StoredRun, folder: RunFolder) -> StoredRun:
    """Return what a checkpoint holds with the `NEW_VALUES` of a run that was resumed, and killed before another one."""
    config, then, now = OmegaConf.create(stored.config), flat(stored.config), flat(folder.config)
    for key in sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key)):
        if not _may_be_new(key):
            raise InputError(
                f"{key}={format_value(then.get(key))}: the run was made with {format_value(now.get(key))} by "
                f"{folder.config_file}, which isn't that of its {folder.last_checkpoint.name}; without "
                f"{folder.config_file.parent} it goes on as that says"
            )
        OmegaConf.update(config, key, now.get(key), merge=False, force_add=True)
    values: Any = OmegaConf.to_container(config, resolve=False)
    return StoredRun(_without_run_keys(folder.overrides), values)


def _drop_stage(key: str) -> str:
    """Return the key that a stage changes: stages.lns.trainer.max_steps -> trainer.max_steps."""
    return re.sub(r"^stages\.[^.]+\.", "", key)


def _may_be_new(key: str) -> bool:
    name = _drop_stage(key)
    return is_below(name, NEW_VALUES) and not is_below(name, KEPT)


def read_checkpoint_run(path: Path) -> StoredRun:
    """Read what the run of a checkpoint stored in it."""
    from dml.training.checkpoints import read_checkpoint  # late: it imports torch

    return extract_run(read_checkpoint(path, lazily=True))


def extract_run(checkpoint: Mapping[str, Any]) -> StoredRun:
    """Return what the run of a checkpoint stored in it."""
    run = checkpoint["run"]
    return StoredRun(_without_run_keys(run["overrides"]), run["config"])


def _without_run_keys(overrides: Any) -> list[str]:
    return [override for override in map(str, overrides) if key_of(override).split(".")[0] not in RUN_KEYS]


def is_trusted(words: Sequence[str]) -> bool:
    """Return whether ``trust=true`` is among the words of the command line."""
    return any(word.lstrip("+").lower() == "trust=true" for word in words)


def offer(command: str, stored: StoredRun, words: Sequence[str]) -> str:
    """Let Hydra compose a command of stored values where the command line gives no others -> name of the configuration.

    A group that the command line chooses is as in ``conf/``, but the trainer: ``trainer=ddp`` chooses its `PROCESSES`.
    Without ``trust=true`` each `CALL` in the file counts as missing.
    """
    values = stored.config if is_trusted(words) else _without_calls(stored.config)
    values = {key: values[key] for key in list_declared(SETTINGS["train"]) if key in values and key not in RUN_KEYS}
    if "trainer" in map(key_of, words):
        values["trainer"] = {key: value for key, value in values["trainer"].items() if key not in PROCESSES}
    store, groups = ConfigStore.instance(), []
    for group in (GROUPS & values.keys()) - {"trainer"}:
        if (part := values.pop(group)) is not None:
            groups.append(group)
            # Hydra would compose the files that a part's ``defaults`` name
            store.store(group=group, name=STORED, node={key: part[key] for key in part if key != "defaults"})
    defaults = [command, *({f"override {group}": STORED} for group in groups), "_self_"]
    store.store(name=f"{STORED}_{command}", node={"defaults": defaults, **values})
    return f"{STORED}_{command}"


def check_foreign(command: str, config: DictConfig, words: Sequence[str]) -> None:
    """Make sure that a configuration which a file's values are part of builds known objects, and writes nowhere else.

    What the command line itself names is not held against the file.
    """
    unused = (*TRAINED, "stages") if command == "evaluate" else ("stages",)
    configs = [config, *(stage.config for stage in list_stages(config))]
    found = dict.fromkeys(value for part in configs for value in building.find_foreign(resolve_parts(part, unused)))
    keys = {_drop_stage(key_of(word)) for word in words} - {"trainer"}
    source = next(word for word in words if key_of(word) in ("resume", "checkpoint"))
    keys |= {"data.cache"} if command == "evaluate" else set()  # a test only reads there
    foreign = building.describe([value for value in found if not is_below(value.path, keys)])
    if foreign and not is_trusted(words):
        raise InputError(
            f"{source}: {foreign} comes from this file, and could run any code or write anywhere; give it here, or "
            "trust=true if you trust this file"
        )
    if foreign:
        console.print(f"[bold]trusted[/]  {in_markup(f'{source}: {foreign}')}")


def check_new_values(config: DictConfig, folder: RunFolder, stored: StoredRun) -> None:
    """Make sure that a resumed run has new values of `NEW_VALUES` alone."""
    now, then = flat(plain_config(config)), flat(stored.config)
    for key in sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key)):
        if not _may_be_new(key):
            given, before = (f"{key}={format_value(values.get(key))}" for values in (now, then))
            raise InputError(
                f"{given}: the run has {before}, and goes on as it began; "
                f"{shlex.quote(f'training.init={folder.last_checkpoint}')} begins a new run with its weights"
            )


def check_trained(config: DictConfig, stored: StoredRun, max_steps: Any, progress: "TrainingProgress") -> None:
    """Make sure that a resumed run isn't given values with which none of its steps was trained, and none will be."""
    names = [str(name) for name in config.stages]
    for name in names[: names.index(progress.stage)] if progress.stage in names else ():
        if plain_config(config)["stages"][name] != stored.config["stages"][name]:
            raise InputError(f"stages.{name}: the run has finished this stage; a new run can have another one")
    if progress.stage != (names or [""])[-1] or not isinstance(max_steps, int) or not 0 <= max_steps <= progress.step:
        return
    if progress.step > max_steps:
        raise InputError(
            f"trainer.max_steps={max_steps}: the run has {progress.step} steps already; a shorter one is a new run"
        )
    rate, before = (values["optimizer"].get("lr") for values in (plain_config(config), stored.config))
    if rate != before:
        raise InputError(
            f"optimizer.lr={rate}: the run has trained all of its {max_steps} steps with {before}; a larger "
            "trainer.max_steps trains on with the new one"
        )


def name_choices(choices: Mapping[str, Any], began_in: RunFolder) -> dict[str, Any]:
    """Return Hydra's choices with those of the resumed or tested run, as far as they are known, for `STORED`."""
    return {group: began_in.choices.get(group) if name == STORED else name for group, name in choices.items()}


def write_configuration(folder: RunFolder, config: DictConfig, overrides: Sequence[str], began_in: RunFolder) -> None:
    """Write `.hydra/` of a run or a test, as Hydra does, and begin its log."""
    hydra: Any = HydraConfig.instance().cfg
    if hydra is not None:
        console.begin_log(folder.path / f"{hydra.hydra.job.name}.log")
        hydra = OmegaConf.to_container(hydra, resolve=False)
        runtime = hydra["hydra"]["runtime"]
        runtime["choices"] = name_choices(runtime["choices"], began_in)
    plain: Any = OmegaConf.to_container(config, resolve=False)
    written = {key: plain[key] for key in RUN_KEYS if key in plain} | plain_config(config)
    folder.write_configuration(*map(OmegaConf.to_yaml, (written, hydra or {}, [*overrides])))
