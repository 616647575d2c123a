"""The configuration of a run: its stages, its values as it stores them, and what resumes, tests or opens it with them.

The values are in each checkpoint and, before there is one, in ``.hydra/config.yaml``: plain values, in which an
interpolation of other values stays one. Whatever the command line doesn't name is taken from there. Hydra composes
both: the stored parts are choices of its groups, as the files of ``conf/`` are.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from dml.run import building
from dml.run.config_folders import CONF, GROUPS, format_value
from dml.run.settings import SETTINGS, TRAINED, Settings, list_declared, read_settings
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
class Stage:
    """One training of a run; a run has several, each of which goes on with the weights of the one before, or one.

    Args:
        name: name of the stage; "" for the only one.
        config: configuration of the run with the changes of the stage.
    """

    name: str
    config: DictConfig

    @property
    def settings(self) -> Settings:
        """The settings of the stage, as they are now."""
        return read_settings(self.config, Settings)

    def for_test(self, *, lacks_weights: bool = False) -> "Stage":
        """Return the stage as a test of its checkpoint needs it, without the parts that only training uses.

        The model begins without pretrained weights, unless the checkpoint lacks them.
        """
        parts = resolve_parts(self.config, TRAINED)
        of_training = ("max_epochs", "check_val_every_n_epoch", "val_check_interval", "callbacks")
        parts["trainer"] |= dict.fromkeys(of_training) | {"max_steps": 1}
        backbone = parts["model"].get("backbone")
        if isinstance(backbone, dict) and "weights" in backbone and not lacks_weights:
            backbone["weights"] = None
        return Stage(self.name, OmegaConf.create(parts))


def list_stages(config: DictConfig) -> list[Stage]:
    """Return the stages of a configuration in order; each entry of ``stages`` holds its changes to the rest.

    A part with a ``_target_`` replaces the whole part, anything else changes single values. Without ``stages`` the run
    has one stage.
    """
    plain: Any = OmegaConf.to_container(config.stages, resolve=False)
    stages = []
    for name, changes in plain.items():
        changed = config.copy()
        with open_dict(changed):
            changed.stages = {}
        for path, value in _iterate_changes(changes or {}):
            if isinstance(value, str) and "${" not in value and (CONF / path).is_dir():
                raise InputError(
                    f"stages.{name}.{path}={value}: a stage takes the values of a part; in an experiment's defaults, "
                    f"/{path}@stages.{name}.{path}: {value} chooses another"
                )
            OmegaConf.update(changed, path, value, merge=False)
        stages.append(Stage(str(name), changed))
    return stages or [Stage("", config)]


def _iterate_changes(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each change, interpolations unresolved."""
    if isinstance(content, dict) and "_target_" not in content and (content or not path):
        for key, value in content.items():
            yield from _iterate_changes(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def find_stage(stages: Sequence[Stage], name: str) -> Stage:
    """Return the stage of a name."""
    for stage in stages:
        if stage.name == name:
            return stage
    names = ", ".join(stage.name for stage in stages) or "none"
    raise InputError(f"checkpoint of stage {name or '(none)'}: this run's stages are {names}")


def resolve_parts(config: DictConfig, unused: Collection[str] = ()) -> dict[str, Any]:
    """Return the parts of a configuration as plain values, their interpolations resolved.

    Args:
        config: configuration of a run or a stage.
        unused: top-level keys to skip; an interpolation in them needn't have a value.
    """
    parts: dict[str, Any] = {}
    for key in config:
        if key not in unused:
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            is_plain = not OmegaConf.is_config(value)
            parts[str(key)] = value if is_plain else OmegaConf.to_container(value, resolve=True)
    return parts


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


def _without_calls(value: Any) -> Any:
    """Return stored values, which may be a stranger's, with each `CALL` as a missing one."""
    if isinstance(value, Mapping):
        return {key: _without_calls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_calls(inner) for inner in value]
    return "???" if isinstance(value, str) and CALL.search(value) else value


def read_stored_run(folder: RunFolder) -> StoredRun:
    """Read what the run in a folder stored last."""
    if folder.last_checkpoint.exists():
        stored = read_checkpoint_run(folder.last_checkpoint)
        if not folder.has_configuration:
            return stored
        # which has the newer values of a run that was resumed, and killed before it wrote another checkpoint
        for key, then, now in _find_other_changes(stored.config, folder.config):
            raise InputError(
                f"{key}={then}: the run was made with {now} by {folder.config_file}, which isn't that of its "
                f"{folder.last_checkpoint.name}; without {folder.config_file.parent} it goes on as that says"
            )
        return StoredRun(_without_run_keys(folder.overrides), folder.config)
    if folder.has_configuration and not folder.is_evaluation:
        return StoredRun(_without_run_keys(folder.overrides), folder.config)
    is_checkpoint = folder.path.suffix == ".ckpt" and folder.path.is_file()
    run = RunFolder.from_checkpoint(folder.path) if is_checkpoint else next(newest_runs(folder.path), None)
    reason = "no run there; its folder has .hydra/ and checkpoints/"
    if folder.is_evaluation:
        reason = "a test of a checkpoint, which has no training to go on with"
    elif run:
        reason += f"; {shlex.quote(f'resume={run.path}')} goes on with the nearest run"
    raise InputError(f"resume={folder.path}: {reason}")


def _find_other_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys but `NEW_VALUES` whose values differ, with both values as they are typed."""
    values_then, values_now = flat(then), flat(now)
    for key in sorted(values_now.keys() | values_then.keys()):
        before, after, name = values_then.get(key), values_now.get(key), _drop_stage(key)
        if before != after and (is_below(name, KEPT) or not is_below(name, NEW_VALUES)):
            yield key, format_value(before), format_value(after)


def _drop_stage(key: str) -> str:
    """Return the key that a stage changes: stages.lns.trainer.max_steps -> trainer.max_steps."""
    return re.sub(r"^stages\.[^.]+\.", "", key)


def read_checkpoint_run(path: Path) -> StoredRun:
    """Read what the run of a checkpoint stored in it."""
    from dml.training.checkpoints import read_checkpoint  # late: it imports torch

    return extract_run(read_checkpoint(path, lazily=True))


def extract_run(checkpoint: Mapping[str, Any]) -> StoredRun:
    """Return what the run of a checkpoint stored in it."""
    run = checkpoint["run"]
    return StoredRun(_without_run_keys(run["overrides"]), run["config"])


def extract_stage(checkpoint: Mapping[str, Any]) -> Stage:
    """Return the stage that a checkpoint was written in; a `CALL` in its values, which may be a stranger's, is missing.

    Interpolations are resolved when they are read.
    """
    config: Any = OmegaConf.create(_without_calls(extract_run(checkpoint).config))
    return find_stage(list_stages(config), checkpoint["run"].get("stage", ""))


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


def check_new_values(values: Mapping[str, Any], folder: RunFolder, stored: StoredRun) -> None:
    """Make sure that a resumed run has new values of `NEW_VALUES` alone."""
    for key, then, now in _find_other_changes(stored.config, values):
        raise InputError(
            f"{key}={now}: the run has {key}={then}, and goes on as it began; "
            f"{shlex.quote(f'training.init={folder.last_checkpoint}')} begins a new run with its weights"
        )


def check_trained(values: Mapping[str, Any], stored: StoredRun, max_steps: Any, progress: "TrainingProgress") -> None:
    """Make sure that a resumed run isn't given values with which none of its steps was trained, and none will be."""
    names = [*values["stages"]]
    for name in names[: names.index(progress.stage)] if progress.stage in names else ():
        if values["stages"][name] != stored.config["stages"][name]:
            raise InputError(f"stages.{name}: the run has finished this stage; a new run can have another one")
    rate, before = (config["optimizer"].get("lr") for config in (values, stored.config))
    is_in_last_stage = progress.stage == (names or [""])[-1]
    is_longer = not isinstance(max_steps, int) or max_steps > progress.step or max_steps < 0
    if is_in_last_stage and not is_longer and (max_steps < progress.step or rate != before):
        new = f"trainer.max_steps={max_steps}" if rate == before else f"optimizer.lr={rate}"
        raise InputError(
            f"{new}: the run has {progress.step} steps already, and would end without another one; a larger "
            "trainer.max_steps trains on, and a shorter run is a new run"
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
