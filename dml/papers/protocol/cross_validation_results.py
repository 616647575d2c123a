"""The results of the protocol as one small JSON file, from which its page can be computed again."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dml.ops.configuration.overrides import key_of
from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.filesystem.locks import replacing_alone
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.protocol.cross_validation import CrossValidation, Method
from dml.papers.protocol.cross_validation_runs import Searches, measure_seconds
from dml.papers.protocol.fold_ensembles import join_tests, rank_ensemble
from dml.papers.protocol.search_spaces import Proposal
from dml.report.statistics import ClassSums, sum_runs_by_class


@dataclass(frozen=True)
class TriedConfiguration:
    """A configuration that a search tried.

    Args:
        proposal: values of the searched keys.
        values: MAP@R of the best validation of each fold, fractions.
        seconds: seconds that the trainings of all folds took together.
    """

    proposal: Proposal
    values: list[float]
    seconds: float

    @property
    def value(self) -> float:
        """What the search maximised: the mean over the folds."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class MethodResult:
    """The result of a method.

    Args:
        loss: name of the loss.
        ranges: each searched key of the configuration with its range, in Markdown.
        tried: the tried configurations, in their order.
        single: test of each model, those of seed 0 first, in the order of the folds.
        ensemble: test of the ensemble of the folds, for each seed.
        seconds: seconds that the trainings of the tested models took together.
    """

    loss: str
    ranges: list[str]
    tried: list[TriedConfiguration]
    single: ClassSums
    ensemble: ClassSums
    seconds: float

    @property
    def best(self) -> TriedConfiguration:
        """The configuration that was tested."""
        return max(self.tried, key=lambda tried: tried.value)


@dataclass(frozen=True)
class ProtocolResult:
    """The results of all methods in one setting.

    Args:
        setting: data set, folds, seeds and overrides that the trainings of all losses share.
        methods: results of the methods.
        configuration: `CrossValidation.identify` when they were trained; "" if an older version stored them.
    """

    setting: CrossValidation
    methods: list[MethodResult]
    configuration: str = ""

    def merge_into(self, old: "ProtocolResult | None") -> "ProtocolResult":
        """Return these results by loss, with the old ones of other losses, which `check_setting` has let pass."""
        merged = {method.loss: method for method in (*(old.methods if old else ()), *self.methods)}
        return replace(self, methods=[merged[loss] for loss in sorted(merged)])


def collect_results(methods: Iterable[Method], searches: Searches) -> ProtocolResult:
    """Collect the results of the methods whose runs are finished; the ensembles that are missing are tested first."""
    results = []
    for method in methods:
        groups = searches.list_tested_runs(method)
        runs = [run for group in groups for run in group]
        if not runs or not all(run.is_finished for run in runs):
            continue
        ensemble = join_tests([rank_ensemble(group) for group in groups])
        for run in runs:
            run.discard_checkpoints()
        trials = searches.list_trials(method, searches.setting.trials)
        tried = [
            TriedConfiguration(
                trial.proposal,
                trial.values,
                round(measure_seconds(trial.runs), 1),
            )
            for trial in trials
        ]
        ranges = [searched.describe() for searched in method.ranges]
        single = sum_runs_by_class([RunFolder(run.folder) for run in runs])
        results.append(MethodResult(method.loss, ranges, tried, single, ensemble, round(measure_seconds(runs), 1)))
    return ProtocolResult(searches.setting, results, searches.setting.identify())


def read_results(path: Path) -> ProtocolResult | None:
    """Read the results that `write_results` wrote; None if there is no file.

    Raises:
        InputError: if the file isn't one that `write_results` wrote.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        setting = content["setting"]
        setting |= {key: tuple(setting[key]) for key in ("rates", "overrides")}
        methods = [_parse_method(method) for method in content["methods"]]
        return ProtocolResult(CrossValidation(**setting), methods, content.get("configuration", ""))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: no results of dml protocol ({error}); delete it, or take it from git") from error


def store_results(path: Path, new: ProtocolResult) -> ProtocolResult:
    """Merge new results into a file, and return all: another command may have written there during the training.

    Raises:
        InputError: if `check_setting` or `read_results` raises one.
    """
    with replacing_alone(path):
        old = read_results(path)
        check_setting(new.setting, old, path)
        merged = new.merge_into(old)
        write_results(path, merged)
    return merged


def check_setting(setting: CrossValidation, old: ProtocolResult | None, path: Path) -> None:
    """Make sure that results of a setting can be written beside the stored ones, which are compared with them.

    Args:
        setting: setting of the new results.
        old: stored results; None if there are none.
        path: file of the stored results.

    Raises:
        InputError: if the stored results have another setting, or were trained with other values of conf/.
    """
    if old is None:
        return
    stored, new = _describe_setting(old.setting), _describe_setting(setting)
    differing = [name for name in new if stored[name] != new[name]]
    if differing:
        stored_values, new_values = (", ".join(values[name] for name in differing) for values in (stored, new))
        raise InputError(
            f"{path}: its results have {stored_values}, not {new_values}, and one page compares one setting; "
            "another --docs FOLDER takes the new results"
        )
    if old.configuration not in ("", setting.identify()):
        raise InputError(
            f"{path}: its results were trained with other values of conf/ than today's, and one page compares one "
            "configuration; another --docs FOLDER takes the new results"
        )


def _describe_setting(setting: CrossValidation) -> dict[str, str]:
    """Return {name of a field: its arguments}; overrides of different keys may stand in any order."""
    values = {field.name: getattr(setting, field.name) for field in fields(setting)}
    overrides = sorted(values.pop("overrides"), key=key_of)
    low, high = values.pop("rates")
    described = {name: f"{name}={value}" for name, value in values.items()}
    described["rates"] = f"rates={low},{high}"
    described["overrides"] = " ".join(f"--set {override}" for override in overrides) or "no --set"
    return described


def _parse_method(content: dict[str, Any]) -> MethodResult:
    tried = [TriedConfiguration(**entry) for entry in content.pop("tried")]
    single, ensemble = (ClassSums(**content.pop(name)) for name in ("single", "ensemble"))
    return MethodResult(**content, tried=tried, single=single, ensemble=ensemble)


def write_results(path: Path, result: ProtocolResult) -> None:
    """Write results as JSON, each method on a line of its own."""
    lines: Sequence[str] = [json.dumps(asdict(method), separators=(",", ":")) for method in result.methods]
    setting = json.dumps(asdict(result.setting))
    described = f'"setting": {setting},\n"configuration": "{result.configuration}"'
    write_text(path, f'{{{described},\n"methods": [\n' + ",\n".join(lines) + "\n]}\n")
