"""A run as reports show it, read from its folder."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from dml import __version__
from dml.data.images import ImageLimits, UnreadableImageError, read_image, without_remedy
from dml.evaluation.metric import split_head_names
from dml.evaluation.names import MetricDescription, describe_stored_metrics, name_dataset
from dml.evaluation.per_query import QueryTable, read_queries
from dml.report.console import describe_weights, list_remarks
from dml.report.provenance import SELECTIONS
from dml.retrieval.search import FAISS_VERSION
from dml.runtime.errors import InputError
from dml.runtime.reading import parse_yaml
from dml.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class ReportedRun:
    """A run that has been tested, with everything that a report shows of it: the contents of its folder's files."""

    name: str  # the last two parts of the folder's path
    metrics: Mapping[str, Any]
    queries: QueryTable
    config: str
    history: Sequence[Mapping[str, float]] = ()
    choices: Mapping[str, str] = field(default_factory=dict)  # of the configuration groups: {"loss": "rll", ...}
    threshold_curves: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)  # {split: FMR and FNMR}
    start_folder: str = ""  # the working folder in which the run was started, if it is known
    is_trained: bool = True  # neither a network as it is, nor vectors of the user's own, are

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as nested dictionaries."""
        settings: dict[str, Any] = parse_yaml(self.config)
        return settings

    @cached_property
    def custom_metrics(self) -> tuple[MetricDescription, ...]:
        """The metrics that the user has defined."""
        return describe_stored_metrics(self.settings)

    @property
    def title(self) -> str:
        """The loss and the data set of the run; the latter alone for vectors that dml didn't train."""
        loss, dataset = self.choices.get("loss") or self._loss_class, name_dataset(self.settings)
        return f"{loss} on {dataset}" if self.is_trained else dataset

    @property
    def _loss_class(self) -> str:
        return str(self.settings.get("loss", {}).get("_target_", "")).rpartition(".")[2]

    @property
    def remarks(self) -> dict[str, str]:
        """What a reader of the metrics has to know of the run."""
        return list_remarks(self.metrics, self.settings)

    def read_picture(self, path: str) -> Tensor:
        """Read the picture of a path in ``queries`` -> (3, H, W) uint8, with the limits that the run had.

        A relative path begins in the folder in which the run was started, if that is still there.
        """
        full_path = os.path.join(self.start_folder, path) if os.path.isdir(self.start_folder) else path
        try:
            return read_image(full_path, ImageLimits.from_settings(self.settings.get("data") or {}))
        except UnreadableImageError as error:
            raise InputError(
                f"{without_remedy(error)}; a report shows the images of its run, and dml evaluate checkpoint=BEST.CKPT "
                "dataset.root=FOLDER writes one of the images in another folder"
            ) from error

    def summarize(self) -> dict[str, str]:
        """Return the data set, the loss, the model and other facts, which the head of a report lists by name."""
        model = self.settings.get("model", {})
        chosen_heads = self.metrics.get("chosen_heads")
        facts = {
            "data set": name_dataset(self.settings),
            "split": self.metrics.get("split"),
            "loss": _name_choice(self.choices.get("loss"), self._loss_class),
            "model": _name_choice(self.choices.get("model"), model.get("backbone", {}).get("name")),
            "weights trained on": _describe_pretraining(model),
            "heads": ", ".join(split_head_names(chosen_heads) if chosen_heads else model.get("heads", [])),
            "vector": self.metrics.get("vector"),
            "weights": describe_weights(self.metrics) if "step" in self.metrics else None,
            "ended early": self.metrics.get("ended_early"),
            "seed": self.settings.get("seed"),
            "checkpoint": SELECTIONS.get(self.metrics.get("selection", "")),
            "device": self.metrics.get("device"),
        }
        return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _describe_pretraining(model: Mapping[str, Any]) -> str | None:
    """Return the data that downloaded weights were trained on, and their license, if the configuration states them."""
    pretraining = model.get("pretraining") or {}
    is_stated = model.get("backbone", {}).get("weights") == "download" and {"data", "license"} <= {*pretraining}
    return f"{pretraining['data']} (license: {pretraining['license']})" if is_stated else None


def _name_choice(choice: str | None, name: str | None) -> str | None:
    """Return a choice with the name of what was chosen: rll, RankedListLoss -> "rll (RankedListLoss)"."""
    return f"{choice} ({name})" if choice and name and choice != name else choice or name


def read_run(path: Path, metrics: Mapping[str, Any] | None = None) -> ReportedRun:
    """Read a run from metrics.json, per_query.parquet, .hydra/config.yaml, and what it has of the other files.

    ``metrics`` is the future metrics.json, for a report that is made before the file is written; None reads it.
    """
    folder = RunFolder(path)
    needed = [*([folder.metrics_file] if metrics is None else []), folder.queries_file, folder.config_file]
    if missing := [str(file.relative_to(path)) for file in needed if not file.is_file()]:
        raise InputError(f"{path}: {', '.join(missing)} missing; a report needs what a run writes when it is tested")
    metrics = folder.metrics() if metrics is None else metrics
    return ReportedRun(
        name="/".join(path.resolve().parts[-2:]),
        metrics=metrics,
        queries=read_queries(folder.queries_file),
        config=folder.config_text,
        history=[{name: float(value) for name, value in row.items()} for row in folder.history()],
        choices={group: choice for group, choice in folder.choices.items() if choice},
        threshold_curves=folder.threshold_curves(),
        start_folder=folder.start_folder,
        is_trained="step" in metrics,
    )


def collect_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute embeddings and metrics, and the platform."""
    return {
        "dml": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "faiss": FAISS_VERSION,
        "platform": platform.platform(),
    }
