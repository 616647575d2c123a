"""The claims on each data set together with what is known of their runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dml.ops.errors import InputError
from dml.papers.claims.definitions import Claims
from dml.papers.claims.tuning import Tuning
from dml.papers.claims.verdicts import Outcome, compute_outcomes
from dml.papers.plans import PlannedRun, check_data


@dataclass(frozen=True)
class ClaimsOnDataset:
    """The claims on one data set, and what is known of their runs.

    Args:
        claims: the claims.
        tuning: alternatives of the arms, the chosen ones, and their runs.
    """

    claims: Claims
    tuning: Tuning

    @cached_property
    def outcomes(self) -> dict[int, list[Outcome]]:
        """{number of the claim: outcomes of its comparisons}"""
        return {claim.number: compute_outcomes(claim, self.tuning) for claim in self.claims.claims}


def select_datasets(
    tested: Sequence[ClaimsOnDataset], data: Path | None, numbers: Sequence[int] | None
) -> list[ClaimsOnDataset]:
    """Select the data sets that are there, and of their claims those with some numbers; None selects all claims.

    Args:
        tested: the claims on each data set, the embedded one first.
        data: folder that holds the folders of the data sets; None: the embedded data set alone.
        numbers: numbers of the claims.

    Raises:
        InputError: if no claim has one of the numbers, or the folder lacks the data.
    """
    known = [claim.number for claim in tested[0].claims.claims]
    if missing := [number for number in numbers or () if number not in known]:
        raise InputError(f"claim {missing[0]}: there is none; there are {', '.join(map(str, known))}")
    if data is None:
        tested = tested[:1]
    else:
        arms = [arm for one in tested for arm in one.claims.used_arms]
        check_data("claims", [PlannedRun(arm.training, 0, Path()) for arm in arms], data)
    return [replace(one, claims=one.claims.select(numbers)) for one in tested]
