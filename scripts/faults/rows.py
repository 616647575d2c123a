"""Rows of the table of faults, and the verdicts on their tries."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faults.commands import EndedCommand


class FailedError(Exception):
    """A try that did not hold.

    Args:
        why: description of what happened instead.
        ended: command that showed the failure; None without such a command.
    """

    def __init__(self, why: str, ended: EndedCommand | None = None) -> None:
        super().__init__(why)
        self.why, self.ended = why, ended


@dataclass(frozen=True)
class Try:
    """One try of a fault.

    Args:
        number: number of the try, from 0 on.
        folder: empty folder of this try.
        fixtures: folder of the `Fixtures`, which tries only read.
        rng: generator of all random choices of the try.
    """

    number: int
    folder: Path
    fixtures: Path
    rng: np.random.Generator


@dataclass(frozen=True)
class Fault:
    """A row of the table: a fault, and what the project does about it.

    Args:
        name: short name for ``--rows``.
        fault: description of the fault.
        tries: number of tries.
        rule: condition under which a try has held.
        now: one sentence that says how the project handles the fault.
        attempt: function that makes one try and returns how it held, such as "told"; it raises `FailedError` if the try
            didn't hold.
        max_jobs: largest number of tries at a time; None means as many as ``--jobs`` allows.
    """

    name: str
    fault: str
    tries: int
    rule: str
    now: str
    attempt: Callable[[Try], str]
    max_jobs: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a try.

    Args:
        number: number of the try.
        held: whether the try kept the rule.
        how: "told", "unchanged" or the like if the try held; otherwise what happened.
        command: command that failed.
        output: end of what the failed command printed.
        seconds: duration of the try.
    """

    number: int
    held: bool
    how: str
    command: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass
class Result:
    """The result of the tries of a row.

    Args:
        name: name of the row.
        tries: number of tries.
        held: number of tries that held.
        ways: number of tries that held in each way, such as "told".
        failures: verdicts of the tries that did not hold.
        seconds: duration of all tries together.
    """

    name: str
    tries: int = 0
    held: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    failures: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count the verdict on a try."""
        self.tries += 1
        self.seconds += verdict.seconds
        if verdict.held:
            self.held += 1
            self.ways[verdict.how] = self.ways.get(verdict.how, 0) + 1
        else:
            self.failures.append(verdict)
