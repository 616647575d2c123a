"""The papers' claims at desk scale: what is trained for them, and which differences decide them."""

import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dml.evaluation.metric import METRICS, Kind
from dml.ops.errors import InputError
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.experiments import shorten
from dml.papers.tables.paper_tables import REFERENCE, Training

METRIC_LABELS = {metric.name: metric.label for metric in METRICS if metric.kind == Kind.HIERARCHY}
"""Labels of the metrics on the page, where a label isn't the name."""

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One side of comparisons: a training, which is run with several seeds.

    Args:
        name: name of the arm in reference/claims.yaml.
        training: the training without the overrides that tuning selects.
        prefix: prefix of the arm's metrics in metrics.json, such as "heads/H"; "" for the whole embedding.
        alternatives: overrides from which tuning selects the best on the validation classes.
        tuning_metric: the metric that tuning maximizes, such as "recall@1"; "" without alternatives.
        parent: name of the arm whose selected overrides this arm takes before its own; "" for none.
    """

    name: str
    training: Training
    prefix: str = ""
    alternatives: tuple[Overrides, ...] = ()
    tuning_metric: str = ""
    parent: str = ""

    @property
    def experiment(self) -> str:
        """The arm's experiment in conf/experiment/claims: "rll" for ``experiment=claims/rll``."""
        return self.training.experiment.removeprefix("claims/")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: an arm's metric, or the standard deviation over the metrics of several arms."""

    name: str
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Comparison:
    """The claim that one side is better than another.

    Args:
        better, worse: the two sides.
        metric: name of the compared metric: "h_ap", or "recall@1" for that of the finest level.
        margin: percent points by which the better side may fall behind: the margin of non-inferiority.
    """

    better: Side
    worse: Side
    metric: str
    margin: float = 0.0

    def __str__(self) -> str:
        margin = f" (within {self.margin:g})" if self.margin else ""
        return f"{self.better.name} – {self.worse.name}, {METRIC_LABELS.get(self.metric, self.metric)}{margin}"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        number: number of the claim on the page.
        paper: key of the paper: rll, nra, lns or happier.
        tables: names of the paper's tables that print the claim's numbers.
        dataset: data set of the printed numbers.
        rows: row of the tables for each side's name.
        source: place of the claim in the paper, as the page prints it.
        statement: the claim in a sentence.
        comparisons: comparisons that decide the claim.
        remark: remark on the outcome, in Markdown.
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
        """The arms of the claim's comparisons, each once."""
        sides = (side for comparison in self.comparisons for side in (comparison.better, comparison.worse))
        return list({arm.name: arm for side in sides for arm in side.arms}.values())


@dataclass(frozen=True)
class Claims:
    """The claims in their order, as they are tested on one data set.

    Args:
        dataset: name of the data set on the page.
        overrides: overrides of all trainings that choose the data set.
        arms: all arms by name.
        claims: claims that are tested on the data set.
    """

    dataset: str
    overrides: Overrides
    arms: Mapping[str, Arm]
    claims: tuple[Claim, ...]

    def select(self, numbers: Iterable[int] | None) -> "Claims":
        """Return the claims with some numbers, of those that are tested on the data set; None selects all."""
        if numbers is None:
            return self
        return replace(self, claims=tuple(claim for claim in self.claims if claim.number in set(numbers)))

    @property
    def used_arms(self) -> list[Arm]:
        """The arms of the claims, each once."""
        return list({arm.name: arm for claim in self.claims for arm in claim.arms}.values())


@dataclass(frozen=True)
class ClaimsFile:
    """What reference/claims.yaml holds.

    Args:
        setting: paragraphs on how the runs were made, in Markdown.
        on_datasets: the claims on each data set, the embedded one first.
    """

    setting: str
    on_datasets: tuple[Claims, ...]


def read_claims(path: Path = REFERENCE / "claims.yaml", shortened: int = 1) -> ClaimsFile:
    """Read arms and claims from a file; the head of claims.yaml describes its entries.

    Args:
        path: file in the form of claims.yaml.
        shortened: number by which the steps of all trainings are divided.

    Raises:
        InputError: if a name in the file stands for nothing, or a value is missing.
    """
    content = parse_yaml(path.read_text(encoding="utf-8"))
    try:
        on_datasets = tuple(
            _read_claims_on(name, entry or {}, content, shortened) for name, entry in content["datasets"].items()
        )
    except KeyError as error:
        raise InputError(f"{path}: no {error.args[0]}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return ClaimsFile(content["setting"].strip(), on_datasets)


def _read_claims_on(dataset: str, settings: Mapping[str, Any], content: Mapping[str, Any], shortened: int) -> Claims:
    arms = {name: _read_arm(name, entry, settings, shortened) for name, entry in content["arms"].items()}
    if unknown := sorted(set(settings.get("steps", {})) - {arm.experiment for arm in arms.values()}):
        raise InputError(f"{dataset}: steps: no arm trains {unknown[0]}")
    for arm in arms.values():
        if arm.parent and arm.parent not in arms:
            raise InputError(f"arm {arm.name}: like: {arm.parent} is no arm")
        if bool(arm.alternatives) != bool(arm.tuning_metric):
            raise InputError(f"arm {arm.name}: tune and by go together")
    numbers = settings.get("claims", list(content["claims"]))
    claims = tuple(_read_claim(number, content["claims"][number], arms) for number in numbers)
    return Claims(dataset, tuple(settings.get("overrides", ())), arms, claims)


def _read_arm(name: str, entry: str | Mapping[str, Any], dataset_settings: Mapping[str, Any], shortened: int) -> Arm:
    settings: Mapping[str, Any] = {"run": entry} if isinstance(entry, str) else entry
    arm = Arm(
        name,
        Training.parse(f"claims/{settings['run']}").extended(dataset_settings.get("overrides", ())),
        prefix=settings.get("part", ""),
        alternatives=tuple(tuple(shlex.split(overrides)) for overrides in settings.get("tune", ())),
        tuning_metric=settings.get("by", ""),
        parent=settings.get("like", ""),
    )
    steps = dataset_settings.get("steps", {}).get(arm.experiment)
    training = arm.training if steps is None else arm.training.extended([f"trainer.max_steps={steps}"])
    return replace(arm, training=training if shortened == 1 else shorten(training, shortened))


def _read_claim(number: int, entry: Mapping[str, Any], arms: Mapping[str, Arm]) -> Claim:
    spreads = entry.get("spreads", {})

    def make_side(name: str) -> Side:
        arm_names = spreads.get(name, [name])
        if unknown := [arm_name for arm_name in arm_names if arm_name not in arms]:
            raise InputError(f"claim {number}: {unknown[0]} is no arm")
        return Side(name, tuple(arms[arm_name] for arm_name in arm_names))

    comparisons = [
        Comparison(make_side(compared["better"]), make_side(worse), metric, float(compared.get("within", 0)))
        for compared in entry["comparisons"]
        for metric, worse in itertools.product(_as_list(compared["metric"]), _as_list(compared["worse"]))
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


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
