"""The checks that a configuration has all groups and values that a command needs, before anything is read."""

from pathlib import Path
from typing import Any

from hydra.conf import RuntimeConf
from omegaconf import DictConfig, OmegaConf

from dml.commands.remedies import explain_missing
from dml.run.config_folders import CONF
from dml.run.settings import TRAINED
from dml.run.stages import list_stages
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError

FILLED_IN = ("num_classes", "embedding_dim", "teacher_dim")
"""The values of a loss that the run fills in."""
LEAVE = "leave it in"
"""What to do about a top-level key that holds several values."""


PREPARED = ("data", "dataset", "processes")
BUILT = ("sampler", "model", "loss", "optimizer", "trainer")


def select_used_parts(command: str, config: DictConfig) -> DictConfig:
    """Return the parts of a configuration that a command builds objects of.

    The targets of other parts are not imported: a test of a checkpoint from somebody else doesn't need them, and
    nothing has looked at them.
    """
    if command == "train":
        return config
    unused = (*TRAINED, "stages")
    keys = PREPARED if command == "prepare" else [key for key in map(str, config) if key not in unused]
    used: DictConfig = OmegaConf.masked_copy(config, list(keys))
    return used


def check_parts(command: str, config: DictConfig, runtime: RuntimeConf) -> None:
    """Make sure that nothing is missing which a command reads, such as the group that ``~loss`` takes out.

    ``runtime`` are Hydra's values of that name: the choice of each group, and the folders that it was looked for in.

    Raises:
        InputError: naming the first group or key that is missing, and its default, or a file without a ``_target_``.
    """
    for key, remedy in _list_defaults().items():
        is_used = command == "train" or key not in TRAINED
        is_needed = key in PREPARED if command == "prepare" else is_used
        if is_needed and key not in config:
            raise InputError(f"~{key}: {command} needs {key}; {remedy}")
        if is_needed and remedy == LEAVE and not OmegaConf.is_dict(config[key]):
            raise InputError(f"{key}={'null' if config[key] is None else config[key]}: must be a mapping; {remedy}")
        has_target = OmegaConf.is_dict(config.get(key)) and "_target_" in config[key]
        if is_needed and key in BUILT and not has_target:
            raise InputError(f"{_describe_choice(key, runtime)} has no _target_, which names the class to build")


def _describe_choice(group: str, runtime: RuntimeConf) -> str:
    """Return a group with its choice and the file of that, such as "loss=mine: /home/me/my_conf/loss/mine.yaml"."""
    choice = runtime.choices.get(group)
    paths = [Path(source.path, group, f"{choice}.yaml") for source in runtime.config_sources if source.schema == "file"]
    file = next((path for path in paths if path.is_file()), None)
    if file is None or CONF in file.parents:  # the command line has replaced what a file of the project gives
        return f"{group}:"
    return f"{group}={choice}: {file}"


def _list_defaults() -> dict[str, str]:
    """Return what to give for each group and each other top-level key of train.yaml."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(CONF / "train.yaml"), resolve=False)
    choices = [entry for entry in plain.pop("defaults") if isinstance(entry, dict)]
    groups = {group: choice for entry in choices for group, choice in entry.items()}
    del plain["hydra"], groups["launcher"], groups["experiment"]  # a run reads neither of these groups
    remedies = {group: f"give {group}=..., such as the default {group}={choice}" for group, choice in groups.items()}
    for key, value in plain.items():
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
        remedies[key] = LEAVE if isinstance(value, dict) else f"its default is {key}={shown}"
    return remedies


def check_values(command: str, config: DictConfig) -> None:
    """Make sure that a value has been given for each ``???`` that the run doesn't fill in, and a tested checkpoint.

    Raises:
        InputError: naming the first key without a value, with examples of values if there are some.
    """
    is_training = command == "train"
    configs = [stage.config for stage in list_stages(config)] if is_training else [select_used_parts(command, config)]
    for part in configs:
        plain: Any = OmegaConf.to_container(part, resolve=False)
        for path, value in flat(plain).items():
            group, _, key = path.rpartition(".")
            is_filled_in = group == "scheduler.schedule" or (
                path.startswith(("loss.", "distill.loss")) and key in FILLED_IN
            )
            lacks_checkpoint = command == "evaluate" and path == "checkpoint" and value in (None, "")
            if (value == "???" and not is_filled_in) or lacks_checkpoint:
                raise InputError(explain_missing(path, f"{path}: no value; give {path}=..."))
