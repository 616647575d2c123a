"""The words of a command line that Hydra composes: what it would misread is quoted, or refused in one line."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dml.run.config_folders import GROUPS, format_value, quote
from dml.runtime import processes
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.run_folder import RUN_KEYS, newest_runs
from dml.runtime.text import printable

OPTIONS = (
    *("--cfg", "--config-dir", "--config-name", "--config-path", "--experimental-rerun", "--help", "--hydra-help"),
    *("--info", "--multirun", "--package", "--resolve", "--run", "--shell-completion", "--version"),
)
"""Hydra's options, which it also knows by the beginnings of their names."""
MERGED = ("evaluation", "experiment", "logger")
"""The groups of which a run may have several choices, whose values join."""
OTHER_NAMES = {
    "batch_size": "sampler.classes_per_batch and sampler.images_per_class",
    "device": "trainer.accelerator",
    "epochs": "trainer.max_epochs",
    "gpus": "trainer.devices",
    "learning_rate": "optimizer.lr",
    "steps": "trainer.max_steps",
}
"""Names that other projects have for keys, and the keys here."""
PATHS = (
    *("data.cache", "dataset.root", "distill.teacher", "training.init", "resume", "checkpoint"),
    *("model.backbone.weights", "hydra.run.dir", "hydra.sweep.dir"),
)
"""The keys that hold paths."""


def read_arguments(words: Sequence[str], command: str = "train") -> list[str]:
    """Refuse what Hydra would misread, or answer with a trace -> the words with its options first, as it wants them."""
    if command == "evaluate":  # a word alone is a checkpoint, or the folder of a run
        words = [
            f"checkpoint={word}" if "=" not in word and word[:1] not in "-~" and before[:1] != "-" else word
            for before, word in zip(["", *words], words, strict=False)
        ]
    for word in (*words, os.getcwd()):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{printable(word)}: not UTF-8, as all that a run writes; rename the file or folder"
            ) from error
    words = sorted(words, key=lambda word: word[:1] == "~" or (word[:1] != "-" and "=" in word))
    for word in words:
        key, equals, value = word.partition("=")
        if key[:2] == "--" and not any(option.startswith(key) for option in OPTIONS):
            name = key.lstrip("-").replace("-", "_")
            raise InputError(
                f"{word}: no such option; {OTHER_NAMES.get(name, name)}={value or '...'}, without hyphens, sets a value"
            )
        is_list = value.startswith("[") and key not in MERGED  # Hydra would merge the files of the choices
        is_swept = "," in value and value[0] != "[" and not asks_for_sweep(words)
        if key in GROUPS and (is_list or is_swept or value.lower() in ("null", "true", "false")):
            raise InputError(f"{word}: must be the name of one choice; -m {key}=A,B runs each of several in turn")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and equals and value in ("", "''", '""', "null"):
            raise InputError(
                f"{word}: names no folder; {key}=. is the current one, and without {key} a new one is made"
            )
    return words


def asks_for_sweep(arguments: Iterable[str]) -> bool:
    """Tell whether the arguments ask Hydra for a sweep: by an option, the beginning of its name, or its mode."""
    return any(
        argument in ("-m", "hydra.mode=MULTIRUN") or (len(argument) > 2 and "--multirun".startswith(argument))
        for argument in arguments
    )


def replace_latest(argument: str) -> str:
    """Return an argument with the newest run below outputs/, or a checkpoint of it, in the place of ``latest``."""
    key, _, value = argument.partition("=")
    if value != "latest" or key not in ("resume", "checkpoint", "training.init"):
        return argument
    for run in newest_runs(Path("outputs")):
        checkpoint = run.best_checkpoint if run.best_checkpoint.exists() else run.last_checkpoint
        return f"{key}={run.path if key == 'resume' else checkpoint}"
    raise InputError(f"{argument}: no run below outputs")


def quote_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around each path, and each other text with letters that Hydra's grammar lacks.

    Lists, mappings, interpolations, and quotes and sweeps of the user's own are left alone.
    """
    is_sweep = asks_for_sweep(arguments)
    # Hydra's own keys have one value, also in a sweep
    return [_quote_value(argument, is_sweep and not argument.startswith("hydra.")) for argument in arguments]


def _quote_value(argument: str, is_sweep: bool) -> str:
    key, equals, value = argument.partition("=")
    is_listed = value[:1] in ("[", "{")
    is_path = key.lstrip("+") in PATHS or ("." in key and "/" in value and not is_listed)
    is_text = is_path or not (is_listed or value.isascii())
    if not equals or not is_text or key[:1] in "-~" or "${" in value or value == "null":
        return argument
    override: Override | None = None
    with suppress(HydraException):
        override = OverridesParser.create().parse_override(argument)
    is_users = value[:1] in ("'", '"') or (is_sweep and override is not None and override.is_sweep_override())
    if override is not None and (is_users or not is_path):
        return argument
    # a run stores other paths with their ``~``, for a machine on which the home folder is another
    if value.startswith("~") and (key in RUN_KEYS or key.startswith("hydra.")):
        value = str(expand_home(value))
    texts = [text.strip() for text in value.split(",")] if is_sweep else [value]
    return f"{key}={','.join(map(format_value, texts))}"


def find_path(arguments: Sequence[str], key: str) -> Path | None:
    """Return the path behind the last ``key=`` among the arguments; None without one, or for null."""
    overrides = [argument for argument in arguments if argument.partition("=")[0] == key]
    value = overrides[-1].partition("=")[2] if overrides else ""
    if value[:1] in ("'", '"'):
        value = str(OverridesParser.create().parse_override(overrides[-1]).value())
    return expand_home(value) if value not in ("", "null") else None


def follow(arguments: Sequence[str]) -> list[str]:
    """Join the other processes of the job -> the arguments of the command line, with the run folder of rank 0.

    Processes that torchrun, srun or `processes.launch` started side by side would otherwise each compose a folder of
    their own, with their own clock in its name.
    """
    rank, world_size = _find_rank(arguments)
    if world_size == 1:
        return [*arguments]
    if asks_for_sweep(arguments):
        raise InputError("--multirun: torchrun and srun start the processes of one run")
    processes.join(rank, world_size)
    if rank == 0:
        return [*arguments]
    typed = find_path(arguments, "hydra.run.dir")
    folder = processes.wait_for_folder() if typed is None or "${" in str(typed) else str(typed)
    return [*arguments, f"hydra.run.dir={quote(folder)}", f"hydra.job.name=process_{rank}"]  # a log of its own


def _find_rank(arguments: Sequence[str]) -> tuple[int, int]:
    """Return this process's number and the number of processes; (0, 1) for a process alone.

    Under srun processes that are no job together are common, one of each of many seeds, so trainer=slurm must say it.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "trainer=slurm" in arguments and "SLURM_PROCID" in os.environ:
        from dml.training.hardware import slurm

        environment = slurm()
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
        return environment.global_rank(), environment.world_size()
    return 0, 1
