"""The papers' claims at desk scale: what is trained for them, and which differences decide them."""

import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dml.ops.errors import InputError
from dml.run.tables import OVER_LEVELS, REFERENCE, Training

NAMES = {"h_ap": "H-AP", "asi": "ASI", "ndcg": "NDCG"}
"""Of metrics, for people, where they differ."""

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One side of comparisons: a training, of which several seeds are made.

    Args:
        name: in reference/claims.yaml.
        training: without what is chosen.
        part: of metrics.json, such as "heads/H"; "" is the whole embedding.
        alternatives: overrides, of which the best on the validation classes are chosen.
        by: the metric that chooses, such as "recall@1"; "" without alternatives.
        like: an arm whose chosen overrides it takes too, before its own; "" for none.
    """

    name: str
    training: Training
    part: str = ""
    alternatives: tuple[Overrides, ...] = ()
    by: str = ""
    like: str = ""


@dataclass(frozen=True)
class Side:
    """What a comparison compares: an arm's number, or the standard deviation over several arms' numbers."""

    name: str
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Comparison:
    """Claims that a side is better than another.

    Args:
        better, worse: the sides.
        metric: such as "recall@1", of the finest level, or "h_ap".
        within: percent points that the first may be worse by.
    """

    better: Side
    worse: Side
    metric: str
    within: float = 0.0

    def __str__(self) -> str:
        kept = f" (within {self.within:g})" if self.within else ""
        return f"{self.better.name} – {self.worse.name}, {NAMES.get(self.metric, self.metric)}{kept}"


@dataclass(frozen=True)
class Claim:
    """What a paper claims.

    Args:
        number: of the claim.
        paper: rll, nra, lns or happier.
        tables: its tables that print the numbers.
        dataset: that they are of.
        rows: {side's name: row of the tables}.
        source: where the paper has it, for people.
        statement: in words.
        comparisons: that decide it.
        remark: on what came out, in Markdown.
    """

    number: int
    paper: str
    tables: tuple[str, ...]
    dataset: str
    rows: Mapping[str, str]
    source: str
    statement: str
    comparisons: tuple[Comparison, ...]
    remark: str

    @property
    def arms(self) -> list[Arm]:
        """Those of its comparisons, each once."""
        sides = (side for one in self.comparisons for side in (one.better, one.worse))
        return list({arm.name: arm for side in sides for arm in side.arms}.values())


@dataclass(frozen=True)
class Claims:
    """All arms by name, the claims in their order, and how they were made, in words."""

    setting: str
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...]

    def only(self, numbers: Iterable[int] | None) -> "Claims":
        """The claims of these numbers; None for all.

        Raises:
            InputError: if there is none of a number.
        """
        if numbers is None:
            return self
        known = {claim.number: claim for claim in self.claims}
        if missing := [number for number in numbers if number not in known]:
            raise InputError(f"claim {missing[0]}: there is none; there are {', '.join(map(str, known))}")
        return replace(self, claims=tuple(known[number] for number in numbers))

    @property
    def used(self) -> list[Arm]:
        """The arms of the claims, each once."""
        return list({arm.name: arm for claim in self.claims for arm in claim.arms}.values())


def key(metric: str) -> str:
    """The name of a metric in metrics.json."""
    return metric if metric in OVER_LEVELS else f"level0/{metric}"


def read(path: Path = REFERENCE / "claims.yaml") -> Claims:
    """Arms and claims of the file, whose head says what it holds.

    Raises:
        InputError: if a name in it stands for nothing, or a value is missing.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        arms = {name: _arm(name, entry) for name, entry in content["arms"].items()}
        claims = tuple(_claim(number, entry, arms) for number, entry in content["claims"].items())
    except KeyError as error:
        raise InputError(f"{path}: no {error.args[0]}") from error
    for arm in arms.values():
        if arm.like and arm.like not in arms:
            raise InputError(f"{path}: arm {arm.name}: like: {arm.like} is no arm")
        if bool(arm.alternatives) != bool(arm.by):
            raise InputError(f"{path}: arm {arm.name}: tune and by go together")
    return Claims(content["setting"].strip(), arms, claims)


def _arm(name: str, entry: str | Mapping[str, Any]) -> Arm:
    given: Mapping[str, Any] = {"run": entry} if isinstance(entry, str) else entry
    return Arm(
        name,
        Training.parse(f"claims/{given['run']}"),
        part=given.get("part", ""),
        alternatives=tuple(tuple(shlex.split(one)) for one in given.get("tune", ())),
        by=given.get("by", ""),
        like=given.get("like", ""),
    )


def _claim(number: int, entry: Mapping[str, Any], arms: Mapping[str, Arm]) -> Claim:
    spreads = entry.get("spreads", {})

    def side(name: str) -> Side:
        unknown = [one for one in spreads.get(name, [name]) if one not in arms]
        if unknown:
            raise InputError(f"claim {number}: {unknown[0]} is no arm")
        return Side(name, tuple(arms[one] for one in spreads.get(name, [name])))

    comparisons = [
        Comparison(side(one["better"]), side(worse), metric, float(one.get("within", 0)))
        for one in entry["comparisons"]
        for metric, worse in itertools.product(_listed(one["metric"]), _listed(one["worse"]))
    ]
    return Claim(
        number=int(number),
        paper=entry["paper"],
        tables=tuple(entry["tables"]),
        dataset=entry["dataset"],
        rows=entry["rows"],
        source=entry["source"],
        statement=entry["statement"].strip(),
        comparisons=tuple(comparisons),
        remark=entry["remark"].strip(),
    )


def _listed(one_or_more: Any) -> list[Any]:
    return one_or_more if isinstance(one_or_more, list) else [one_or_more]
