"""What a run's folder says about it."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import yaml

from dml.evaluation.metric_names import head_sets_in
from dml.evaluation.per_query import QueryTable, read_queries
from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder

SELECTIONS = {
    "val": "the best on the validation split",
    "test": "the best on the test split",
    "last": "the last one",
}


@dataclass(frozen=True)
class Run:
    """A run that has been tested.

    Args:
        name: what a reader tells it from others by.
        metrics: the contents of metrics.json: fractions by name, and step, split and the like.
        queries: the contents of per_query.parquet.
        config: its configuration as YAML.
        history: the rows of metrics.csv, each with its "step".
        choices: the choice of each configuration group, {"loss": "rll", ...}.
    """

    name: str
    metrics: Mapping[str, Any]
    queries: QueryTable
    config: str
    history: Sequence[Mapping[str, float]] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def head_sets(self) -> list[str]:
        """The names of the heads, and of the sets of heads, that were tested beside all heads together."""
        return head_sets_in(self.metrics)

    @property
    def title(self) -> str:
        """Its loss and its data set."""
        config = yaml.safe_load(self.config)
        loss = self.choices.get("loss") or _last(config.get("loss", {}).get("_target_"))
        return f"{loss} on {config.get('dataset', {}).get('name')}"

    def part(self, prefix: str) -> dict[str, float]:
        """The metrics whose name starts with ``prefix``, without it."""
        return {name.removeprefix(prefix): value for name, value in self.metrics.items() if name.startswith(prefix)}

    def facts(self) -> dict[str, str]:
        """What it is, by name: what a reader wants to know first."""
        config = yaml.safe_load(self.config)
        loss, model = config.get("loss", {}), config.get("model", {})
        named = {
            "data set": config.get("dataset", {}).get("name"),
            "split": self.metrics.get("split"),
            "loss": _named(self.choices.get("loss"), _last(loss.get("_target_"))),
            "model": _named(self.choices.get("model"), model.get("backbone", {}).get("name")),
            "heads": ", ".join(model.get("heads", [])),
            "step": f"{self.metrics['step']:,}" if "step" in self.metrics else None,
            "seed": config.get("seed"),
            "checkpoint": SELECTIONS.get(self.metrics.get("selection", "")),
        }
        return {name: str(value) for name, value in named.items() if value not in (None, "")}


def _last(dotted: str | None) -> str | None:
    return dotted.rpartition(".")[2] if dotted else None


def _named(choice: str | None, name: str | None) -> str | None:
    """rll, RankedListLoss -> "rll (RankedListLoss)"."""
    if choice and name and choice != name:
        return f"{choice} ({name})"
    return choice or name


def read_run(path: Path, metrics: Mapping[str, Any] | None = None) -> Run:
    """The run in a folder, from its metrics.json, per_query.parquet and .hydra/config.yaml, and metrics.csv if any.

    Args:
        path: the folder.
        metrics: what metrics.json is going to hold, if it isn't written yet.

    Raises:
        InputError: if one of these is missing or is no such file.
    """
    folder = RunFolder(path)
    wanted = [*([folder.metrics_file] if metrics is None else []), folder.queries_file, folder.config_file]
    if missing := [str(file.relative_to(path)) for file in wanted if not file.is_file()]:
        raise InputError(f"{path}: {', '.join(missing)} missing; a report needs what a run writes when it is tested")
    return Run(
        name="/".join(path.resolve().parts[-2:]),
        metrics=folder.metrics() if metrics is None else metrics,
        queries=read_queries(folder.queries_file),
        config=folder.config_file.read_text(encoding="utf-8"),
        history=[{name: float(value) for name, value in row.items()} for row in folder.history()],
        choices={group: choice for group, choice in folder.choices.items() if choice},
    )


def versions() -> dict[str, str]:
    """The versions of what computes embeddings and metrics, and the platform: `QueryTable.made_with`."""
    faiss = packages_distributions()["faiss"][0]  # faiss-cpu, or another build of it
    return {
        "dml": version("dml"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "faiss": f"{version(faiss)} ({faiss})",
        "platform": platform.platform(),
    }
