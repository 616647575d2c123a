"""The searches of a study: which overrides are tried for a row, and which of them are chosen."""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Overrides = tuple[str, ...]
Scored = tuple[Overrides, float]
"""Overrides that were tried, and their score; larger is better."""

FIRST_RANDOM = 4
"""The number of trials that are drawn at random before Optuna's sampler learns from the ones before."""
DIGITS = 3
"""Significant digits of the values that Optuna proposes."""


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

    def __str__(self) -> str:
        """Describe the range in Markdown."""
        scale = ", logarithmic" if self.is_log else ""
        return f"`{self.key}` {self.low:g} to {self.high:g}{', whole' if self.is_whole else ''}{scale}"


@dataclass(frozen=True)
class Search:
    """How the overrides of a row are chosen on the validation classes, with seed 0.

    Args:
        score: metric to maximize: one of metrics.json, or the best of the history if its name begins with "val/".
        overrides: overrides of the tried trainings alone.
        steps: alternatives of each step of a grid; those of a later step are tried with the best of the earlier ones.
        ranges: ranges in which Optuna proposes values; none for a grid.
        trials: number of Optuna's proposals.
        name: text that seeds Optuna's proposals.
    """

    score: str
    overrides: Overrides = ()
    steps: tuple[tuple[Overrides, ...], ...] = ()
    ranges: tuple[SearchedRange, ...] = ()
    trials: int = 0
    name: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys of the configuration that the search sets."""
        overrides = [*self.overrides, *(override for step in self.steps for choice in step for override in choice)]
        return [*(override.partition("=")[0] for override in overrides), *(searched.key for searched in self.ranges)]

    def propose(self, tried: Sequence[Scored]) -> list[Overrides]:
        """Return the overrides to try after those that were tried, in their order; none once the search is complete."""
        if self.ranges:
            return [_propose_by_optuna(self, tuple(tried))] if len(tried) < self.trials else []
        done = 0
        for step in self.steps:
            if len(tried) == done:
                best: Overrides = choose_best(tried) if tried else ()
                return [(*best, *alternative) for alternative in step]
            done += len(step)
        return []


def choose_best(tried: Sequence[Scored]) -> Overrides:
    """Return the overrides with the largest score, the first of equal ones."""
    return max(tried, key=lambda scored: scored[1])[0]


@cache
def _propose_by_optuna(search: Search, tried: tuple[Scored, ...]) -> Overrides:
    """Propose the values of the next trial by the sampler TPE (Bergstra et al., 2011).

    The same scores give the same proposal: the search keeps no file, and is told its history anew.
    """
    import optuna  # it takes a second

    optuna.logging.set_verbosity(logging.WARNING)  # otherwise it prints a line for every study
    sampler = optuna.samplers.TPESampler(seed=zlib.crc32(search.name.encode()), n_startup_trials=FIRST_RANDOM)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _, score in tried:
        trial = study.ask()
        _suggest(trial, search.ranges)
        study.tell(trial, score)
    return _suggest(study.ask(), search.ranges)


def _suggest(trial: Any, ranges: Sequence[SearchedRange]) -> Overrides:
    overrides = []
    for searched in ranges:
        key, low, high = searched.key, searched.low, searched.high
        if searched.is_whole:
            value: float = int(trial.suggest_int(key, int(low), int(high), log=searched.is_log))
        else:
            value = float(f"{trial.suggest_float(key, low, high, log=searched.is_log):.{DIGITS}g}")
        overrides.append(f"{key}={value}")
    return tuple(overrides)
