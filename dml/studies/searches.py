"""The search of a study: which overrides are tried for a row, and which of them are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

Overrides = tuple[str, ...]
Scored = tuple[Overrides, float]
"""Overrides that were tried, and their score; larger is better."""


@dataclass(frozen=True)
class Search:
    """How the overrides of a row are chosen on the validation classes, with seed 0."""

    score: str  # largest of metrics.json, or of the history if it begins with "val/"
    steps: tuple[tuple[str, ...], ...]  # alternatives of each step, with the best of the earlier ones

    @property
    def keys(self) -> list[str]:
        """The keys of the configuration that the search sets."""
        return [override.partition("=")[0] for step in self.steps for override in step]

    def propose(self, tried: Sequence[Scored]) -> list[Overrides]:
        """Return the overrides to try after those that were tried, in their order; none once the search is complete."""
        done = 0
        for step in self.steps:
            if len(tried) == done:
                best: Overrides = choose_best(tried) if tried else ()
                return [(*best, alternative) for alternative in step]
            done += len(step)
        return []


def choose_best(tried: Sequence[Scored]) -> Overrides:
    """Return the overrides with the largest score, the first of equal ones."""
    return max(tried, key=lambda scored: scored[1])[0]
