"""What happens before the first run of a sweep: its folder is noted, and a search with Optuna is checked."""

from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from dml.commands.error_lines import one_line_errors
from dml.ops.errors import InputError
from dml.ops.new_folders import note_new_folder
from dml.run.config_folders import search_path_overrides


class SweepStart(Callback):
    """Hydra's callback at the start of a sweep (``hydra.callbacks``).

    A search with Optuna ends there, with one line, if none of its runs could give it a value: it would otherwise
    train each of them in vain. The values that are searched are checked at the first point of the search space.
    """

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folder of the sweep, and check the search; Hydra would turn an exception into a warning."""
        note_new_folder(Path(config.hydra.sweep.dir))
        if "optuna" in str(config.hydra.sweeper._target_) and config.hydra.job.config_name == "train":
            with one_line_errors(bool(config.debug)):
                from dml.commands.search_check import check_search  # it imports torch

                overrides = [*search_path_overrides(config.hydra), *list_first_values(config.hydra)]
                check_search(compose("train", overrides=overrides))


def list_first_values(hydra: Any) -> list[str]:
    """Return the overrides of a sweep in which the first value stands for all that are searched.

    Args:
        hydra: the configuration below ``hydra``.

    Raises:
        InputError: if an override is a glob, which Optuna's sweeper can't search.
    """
    space = OmegaConf.to_container(hydra.sweeper.params) if hydra.sweeper.params else {}
    searched = [f"{key}={value}" for key, value in dict(space).items()] if isinstance(space, dict) else []
    return [
        _choose_first(override)
        for override in OverridesParser.create().parse_overrides([*searched, *hydra.overrides.task])
    ]


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
