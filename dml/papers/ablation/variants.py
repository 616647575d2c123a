"""The variants of the default training, their runs and their results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dml.ops.errors import InputError
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.leaderboard.contest_results import ContestResult, read_result
from dml.papers.leaderboard.contest_runs import train_and_discard
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import REFERENCE, Training
from dml.run.config_folders import quote

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class AblationKind:
    """What is trained: the heads alone, or the whole network.

    Args:
        name: name of the kind.
        title: heading on the page.
        overrides: overrides of the experiment.
        variants: {name of a variant: {data set: overrides}}, the default first.
    """

    name: str
    title: str
    overrides: Overrides
    variants: Mapping[str, Mapping[str, Overrides]]

    def select(self, parts: Sequence[str]) -> "AblationKind":
        """Keep the default, and the variants whose names contain one of these texts.

        Raises:
            InputError: no variant's name contains one of the texts.
        """
        default, *changes = self.variants
        for part in parts:
            if not any(part in name for name in self.variants):
                raise InputError(
                    f"--only {part}: no variant of {self.name} has this in its name; the names are "
                    f"{', '.join(self.variants)}"
                )
        names = [default, *(name for name in changes if any(part in name for part in parts))]
        return replace(self, variants={name: self.variants[name] for name in names})


@dataclass(frozen=True)
class Ablation:
    """The experiment of each data set, the kinds of training, and a paragraph on how they are run."""

    setting: str
    experiments: Mapping[str, str]
    kinds: Mapping[str, AblationKind]

    def list_runs(
        self, dataset: str, kind: AblationKind, variant: str, plan: Plan, roots: Mapping[str, Path]
    ) -> list[PlannedRun]:
        """List the runs of a variant, one for each seed."""
        root = (f"dataset.root={quote(roots[dataset])}",) if dataset in roots else ()
        overrides = (*root, *kind.overrides, *kind.variants[variant][dataset])
        return plan.list_runs(Training(self.experiments[dataset], overrides))


def read_ablation(path: Path = REFERENCE / "ablation.yaml") -> Ablation:
    """Read the variants from a file; the head of ablation.yaml describes its entries."""
    content: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    shared_variants, whole_variants = (
        {name: _read_overrides(entry, content["datasets"]) for name, entry in content[group].items()}
        for group in ("variants", "whole")
    )
    kinds = {
        name: AblationKind(
            name,
            entry["title"],
            tuple(entry["overrides"]),
            shared_variants | (whole_variants if name == "whole" else {}),
        )
        for name, entry in content["kinds"].items()
    }
    return Ablation(content["setting"].strip(), content["datasets"], kinds)


def _read_overrides(
    entry: Sequence[str] | Mapping[str, Sequence[str]], datasets: Iterable[str]
) -> dict[str, Overrides]:
    """Return the overrides of a variant on each data set."""
    return {dataset: tuple(entry[dataset] if isinstance(entry, Mapping) else entry) for dataset in datasets}


def train_missing_runs(
    ablation: Ablation, kind: AblationKind, plan: Plan, roots: Mapping[str, Path], datasets: Iterable[str], jobs: int
) -> bool:
    """Train what is missing of a kind -> whether a run failed; the default comes first on each data set."""
    has_failed = False
    for dataset in datasets:
        runs = [run for name in kind.variants for run in ablation.list_runs(dataset, kind, name, plan, roots)]
        has_failed |= train_and_discard(runs, f"{dataset}, {kind.name}", jobs)
    return has_failed


def collect_results(
    ablation: Ablation, kind: AblationKind, plan: Plan, roots: Mapping[str, Path], datasets: Sequence[str]
) -> list[ContestResult]:
    """Collect the results of the variants of which all runs are finished; the variant stands in place of the loss."""
    results = []
    for dataset in datasets:
        for name, overrides in kind.variants.items():
            runs = ablation.list_runs(dataset, kind, name, plan, roots)
            if all(run.is_finished for run in runs):
                results.append(read_result(dataset, kind.name, name, list(overrides[dataset]), {}, runs))
    return results
