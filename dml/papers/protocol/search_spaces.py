"""What the search of a loss varies, and the values that Optuna proposes."""

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml.ops.errors import InputError, suggest
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.tables.paper_tables import REFERENCE
from dml.run.config_folders import CONF

RATE = "optimizer.lr"
RATES = (1e-4, 3e-3)
"""The smallest and the largest learning rate of a search, unless the user says otherwise."""
FIRST_RANDOM = 4
"""The number of trials that are drawn at random before the sampler TPE learns from the ones before."""
DIGITS = 3
"""Significant digits of proposed values."""

Proposal = dict[str, float | int]
"""A value for each searched key of the configuration."""


@dataclass(frozen=True)
class SearchedRange:
    """The range of a searched number.

    Args:
        key: key of the configuration.
        low: smallest value that the search tries.
        high: largest value that the search tries.
        is_log: whether its logarithm is searched evenly, instead of the value itself.
        is_whole: whether only whole numbers are tried.
    """

    key: str
    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    @classmethod
    def spanning(cls, key: str, values: Sequence[float]) -> "SearchedRange":
        """Return the range from the smallest to the largest of three values; the middle one tells the scale."""
        low, middle, high = sorted(values)
        is_log = low > 0 and abs(middle - (low * high) ** 0.5) < abs(middle - (low + high) / 2)
        return cls(key, low, high, is_log, all(isinstance(value, int) for value in values))

    def describe(self) -> str:
        """Describe the range in Markdown."""
        scale = ", logarithmic" if self.is_log else ""
        return f"`{self.key}` {self.low:g} to {self.high:g}{', whole' if self.is_whole else ''}{scale}"


def read_ranges(
    loss: str, rates: tuple[float, float], path: Path = REFERENCE / "leaderboard.yaml"
) -> list[SearchedRange]:
    """Return what is searched of a loss: the learning rate, and the main parameter that leaderboard.yaml names, if any.

    Args:
        loss: name of a loss in conf/loss.
        rates: smallest and largest learning rate.
        path: leaderboard.yaml, or a file like it.

    Raises:
        InputError: if there is no such loss.
    """
    known = {file.stem for file in (CONF / "loss").glob("*.yaml")}
    if loss not in known:
        raise InputError(f"losses={loss}: no such loss{suggest(loss, known)}")
    parameters: Mapping[str, list[Any]] = parse_yaml(path.read_text(encoding="utf-8"))["losses"].get(loss, {})
    ranges = [SearchedRange(RATE, *rates, is_log=True)]
    for key, values in parameters.items():
        numbers = [value if isinstance(value, int) else float(value) for value in values]  # YAML reads 3e-4 as text
        ranges.append(SearchedRange.spanning(key, numbers))
    return ranges


class ParameterSearch:
    """A search with Optuna's sampler TPE (Bergstra et al., 2011), which proposes the same values for the same history.

    It keeps no file: a search that is told the values of its trials in their order goes on where another one stopped.

    Args:
        loss: name of the loss, which seeds the search.
        ranges: keys of the configuration whose values are searched, and their ranges.
    """

    def __init__(self, loss: str, ranges: Sequence[SearchedRange]) -> None:
        import optuna  # it takes a second

        optuna.logging.set_verbosity(logging.WARNING)  # otherwise it prints a line for every study
        sampler = optuna.samplers.TPESampler(seed=zlib.crc32(loss.encode()), n_startup_trials=FIRST_RANDOM)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._ranges = ranges
        self._trial: Any = None

    def ask(self) -> Proposal:
        """Propose the values of the next trial."""
        self._trial = self._study.ask()
        return {searched.key: self._suggest(searched) for searched in self._ranges}

    def tell(self, value: float) -> None:
        """Tell the value of the trial that was asked for last; larger is better."""
        self._study.tell(self._trial, value)

    def _suggest(self, searched: SearchedRange) -> float | int:
        key, low, high = searched.key, searched.low, searched.high
        if searched.is_whole:
            return int(self._trial.suggest_int(key, int(low), int(high), log=searched.is_log))
        value = self._trial.suggest_float(key, low, high, log=searched.is_log)
        return float(f"{value:.{DIGITS}g}")
