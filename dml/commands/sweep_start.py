"""What happens before the first run of a sweep: its folder is noted, and a search with Optuna is checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from dml.commands.error_lines import one_line_errors
from dml.run.building import trusting
from dml.run.config_folders import CONF, GROUPS, search_path_overrides
from dml.runtime.configuration import is_below, key_of
from dml.runtime.errors import InputError, check_installed
from dml.runtime.new_folders import note_new_folder

LIBRARIES = ("joblib", "optuna", "ray", "submitit")
"""The libraries of sweepers and launchers, each an extra of dml; a plugin of Hydra may be there without its library."""

LARGEST_FACTOR = 10
"""How many times the rate of pretrained weights the smallest rate of a search may be."""


class SweepStart(Callback):
    """Hydra's callback at the start of a sweep (``hydra.callbacks``).

    A search with Optuna ends there, with one line, if none of its runs could give it a value: it would otherwise
    train each of them in vain. The values that are searched are checked at the first point of the search space.
    """

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folder of the sweep, and check the search; Hydra would turn an exception into a warning."""
        note_new_folder(Path(config.hydra.sweep.dir))
        with one_line_errors(bool(config.debug)):
            for group in ("sweeper", "launcher"):
                library = config.hydra.runtime.choices[f"hydra/{group}"].partition("_")[0]
                if library in LIBRARIES:
                    check_installed(library, extra=library)
            if "optuna" in str(config.hydra.sweeper._target_) and config.hydra.job.config_name == "train":
                from dml.commands.training_checks import check_search  # it imports torch

                overrides = [*search_path_overrides(config.hydra), *list_first_values(config.hydra)]
                first = compose("train", overrides=overrides)
                _check_rate(config.hydra, first)
                with trusting(True):  # the command line alone says what a sweep is
                    check_search(first)


def _check_rate(hydra: Any, first: DictConfig) -> None:
    """Refuse the search space's own learning rates for weights whose stated rate is far below all of them."""
    is_given = any(override.startswith("optimizer.lr=") for override in hydra.overrides.task)
    stated = OmegaConf.select(first, "model.pretraining.lr")
    if is_given or stated is None or first.training.frozen or first.optimizer.lr <= LARGEST_FACTOR * stated:
        return
    raise InputError(
        f"sweep=optuna: it searches optimizer.lr from {first.optimizer.lr:g} on, and the rate of these weights is "
        f"{stated:g}; give rates around it, such as 'optimizer.lr=tag(log,interval({stated / 5:g},{stated * 5:g}))'"
    )


def list_first_values(hydra: Any) -> list[str]:
    """Return the overrides of a sweep in which the first value stands for all that are searched.

    Raises:
        InputError: if an override is a glob, which Optuna's sweeper can't search.
    """
    space = OmegaConf.to_container(hydra.sweeper.params) if hydra.sweeper.params else {}
    searched = [f"{key}={value}" for key, value in dict(space).items()] if isinstance(space, dict) else []
    return [
        _choose_first(override)
        for override in OverridesParser.create().parse_overrides([*searched, *hydra.overrides.task])
    ]


def make_composable(arguments: Sequence[str]) -> list[str]:
    """Let every point of a search with Optuna compose, if groups are searched: of their keys, a choice may lack some.

    Such keys get ``++``: the search would end with the first point that can't be composed. `check_point` refuses it in
    its own run, and the search goes on.
    """
    if not {"sweep=optuna", "hydra/sweeper=optuna"}.intersection(arguments):
        return list(arguments)
    own: Any = OmegaConf.load(CONF / "sweep" / "optuna.yaml").hydra.sweeper.params
    words = [argument for argument in arguments if "=" in argument and argument[0] not in "-+~"]
    parsed = [
        override
        for override in OverridesParser.create().parse_overrides(words)
        if not is_below(override.key_or_group, ["hydra", "sweep", *own])
    ]
    groups = GROUPS & {override.key_or_group for override in parsed if override.is_sweep_override()}
    if groups & {"dataset", "experiment"}:  # which choose other groups
        groups = GROUPS
    below = (override for override in parsed if "." in override.key_or_group)
    forced = {override.input_line for override in below if override.key_or_group.partition(".")[0] in groups}
    return [f"++{argument}" if argument in forced else argument for argument in arguments]


def check_point(typed: Sequence[str], overrides: Sequence[str]) -> None:
    """Compose a point of a search as the user has typed its keys.

    Raises:
        HydraException: if a choice of the point lacks one of the keys.
    """
    plain = {key_of(argument) for argument in typed if not argument.startswith("+")}
    as_typed = [override.lstrip("+") if key_of(override) in plain else override for override in overrides]
    if as_typed != [*overrides]:
        compose("train", overrides=as_typed)


def _choose_first(override: Override) -> str:
    if not override.is_sweep_override():
        return str(override.input_line)
    value = override.value()
    if isinstance(value, IntervalSweep):
        return f"{override.get_key_element()}={value.start}"
    if isinstance(value, Glob):
        raise InputError(f"{override.input_line}: sweep=optuna takes choice(A,B), and no glob")
    first = next(override.sweep_string_iterator())
    return f"{override.get_key_element()}={first}"
