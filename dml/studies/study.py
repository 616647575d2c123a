"""A study: the trainings that it compares, as its YAML file describes them."""

import fnmatch
import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from dml.run.config_folders import quote
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError, suggest
from dml.runtime.paths import expand_home
from dml.runtime.reading import parse_yaml
from dml.studies.searches import Overrides, Search, SearchedRange

REFERENCE = Path(__file__).parent / "reference"
"""The folder of the studies, and of the papers' numbers."""

RATE = "optimizer.lr"

Key = tuple[str, str, str]
"""The data set, the condition and the row of a cell."""


@dataclass(frozen=True)
class Training:
    """An experiment of `conf/experiment`, and the overrides that a row adds to it."""

    experiment: str
    overrides: Overrides = ()

    @classmethod
    def parse(cls, arguments: str) -> "Training":
        """Read what follows ``python train.py experiment=``, such as "rll/IX/t_n loss.margin=1"."""
        experiment, *overrides = shlex.split(arguments)
        return cls(experiment, tuple(overrides))

    def extended(self, overrides: Iterable[str]) -> "Training":
        """Return the training with further overrides, each of which takes the place of an earlier one of its key."""
        by_key = {key_of(override): override for override in (*self.overrides, *overrides)}
        return replace(self, overrides=tuple(by_key.values()))


@dataclass(frozen=True)
class Cell:
    """What a study compares: a row on a data set, under a condition.

    Args:
        dataset, condition, row: names of the three.
        training: the training without what a search chooses.
        overrides: overrides by which the row differs from the others.
        after: overrides of the tested trainings alone, which follow those that a search chose.
        part: prefix of the metrics in metrics.json, such as "heads/H"; "" for the whole embedding.
        search: search of the row; None if nothing is chosen for it.
        choice_from: the cell whose chosen overrides this one takes before its own; None for none.
        study: name of the study that trains the cell; "" for this one.
        folds: number of parts of the training classes, each of which validates one training; 0 for one training.
    """

    dataset: str
    row: str
    training: Training
    condition: str = ""
    overrides: Overrides = ()
    after: Overrides = ()
    part: str = ""
    search: Search | None = None
    choice_from: Key | None = None
    study: str = ""
    folds: int = 0

    @property
    def key(self) -> Key:
        """The names of the data set, the condition and the row."""
        return self.dataset, self.condition, self.row

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that the metrics are of; none for the whole embedding."""
        prefix, _, names = self.part.partition("/")
        return tuple(names.split("+")) if prefix == "heads" else ()

    def find_metric(self, name: str) -> str:
        """Return the name of the cell's metric in metrics.json: "nmi" of "heads/H" is "heads/H/nmi"."""
        return f"{self.part}/{name}" if self.part else name

    def divide(self, overrides: Iterable[str] = ()) -> Iterator[tuple[int, Training]]:
        """Yield the number and the training of each fold, with further overrides; without folds one training, of 0."""
        training = self.training.extended(overrides)
        if not self.folds:
            yield 0, training
        for fold in range(self.folds):
            yield fold + 1, training.extended((f"dataset.folds={self.folds}", f"dataset.fold={fold}"))


@dataclass(frozen=True)
class Study:
    """Trainings that are compared, and how their results are shown.

    Args:
        name: name of the study.
        kind: "file" for a study of a YAML file, "table", "figure" or "run_figure".
        cells: all cells of the study.
        content: further values, which the page needs.
        metrics: ends of the names of the metrics that are kept of each run; "" for all.
        sums_classes: whether the metrics of the queries are kept, summed by class.
        keeps_checkpoints: whether the runs keep their checkpoints, which take gigabytes.
        seeds: number of runs of each training; their seeds count from 0.
        outputs: folder of the runs, unless the user names another.
        selection: names of the data sets, conditions and rows that are trained; all of what isn't named.
        changes: settings with which the study isn't that of its file.
    """

    name: str
    kind: str
    cells: tuple[Cell, ...]
    content: Mapping[str, Any]
    metrics: tuple[str, ...] = ()
    sums_classes: bool = False
    keeps_checkpoints: bool = False
    seeds: int = 3
    outputs: Path = Path("outputs")
    selection: Mapping[str, Collection[str]] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    @cached_property
    def by_key(self) -> dict[Key, Cell]:
        """The cells by their keys."""
        return {cell.key: cell for cell in self.cells}

    @property
    def selected(self) -> list[Cell]:
        """The cells that are trained."""
        names = ("datasets", "conditions", "rows")
        return [
            cell
            for cell in self.cells
            if not cell.study
            and all(part in self.selection.get(name, [part]) for name, part in zip(names, cell.key, strict=True))
        ]

    def name_results(self, departures: Sequence[str] = ()) -> str:
        """Return the name of the files of results: those of a changed study don't replace its own.

        The departures are overrides of all trainings that the user gave.
        """
        changed = sorted([*self.changes, *departures])
        return f"{self.name}-{sha256(shlex.join(changed).encode()).hexdigest()[:8]}" if changed else self.name


def read_study(path: Path, settings: Sequence[str] = (), data: Path | None = None) -> Study:
    """Read a study from its file; docs/studies.md describes its keys.

    Args:
        path: path of the YAML file.
        settings: new values such as "seeds=5", and selections such as "rows=rll,*softmax".
        data: folder that holds the folders of the data sets; None if the user gave none.

    Raises:
        InputError: if a name stands for nothing, or a value is missing or can't be used.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file, which would describe a study")
    content = parse_yaml(path.read_text(encoding="utf-8"), with_aliases=True)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no keys, which would describe a study")
    try:
        content["rows"] = _read_rows(content["rows"])
        selection = {key: [*map(str, names)] for key, names in content.get("default", {}).items()}
        changes = apply_settings(content, settings, selection)
        if "claims" in selection:
            selected = [claim for number, claim in content["claims"].items() if str(number) in selection["claims"]]
            selection["rows"] = [row for claim in selected for row in list_compared_rows(claim)]
        if "reference" in content and "rows" in selection:
            selection["rows"] = [content["reference"], *selection["rows"]]
        content["datasets"] = _read_datasets(content["datasets"], selection, data)
        cells = tuple(_make_cells(content))
    except KeyError as error:
        raise InputError(f"{path}: no {error.args[0]}") from error
    return Study(
        name=path.stem,
        kind="file",
        cells=cells,
        content=content,
        metrics=tuple(content.get("metrics", ())),
        sums_classes="claims" not in content,
        seeds=content["seeds"],
        outputs=Path("outputs") / path.stem,
        selection=selection,
        changes=tuple(changes),
    )


def list_compared_rows(claim: Mapping[str, Any]) -> list[str]:
    """List the rows that a claim compares, each once."""
    spreads = claim.get("spreads", {})
    sides = [side for pair in claim["comparisons"] for side in (pair["better"], *as_list(pair["worse"]))]
    return list(dict.fromkeys(row for side in sides for row in spreads.get(side, [side])))


def as_list(value: Any) -> list[Any]:
    """Return a value that isn't a list as a list of one."""
    return value if isinstance(value, list) else [value]


def select_names(kind: str, text: str, known: Collection[str]) -> list[str]:
    """Select names by a list such as "rll,*softmax".

    Raises:
        InputError: if one selects nothing; it names the nearest.
    """
    selected: dict[str, None] = {}
    for pattern in text.split(","):
        names = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not names:
            raise InputError(f"{kind}={pattern}: there is none{suggest(pattern, known)}")
        selected |= dict.fromkeys(names)
    return list(selected)


def apply_settings(content: dict[str, Any], settings: Sequence[str], selection: dict[str, list[str]]) -> list[str]:
    """Apply settings to the values and selections of a study, in place -> the settings that change its trainings.

    Raises:
        InputError: if the study has no such value, or it can't be used.
    """
    changes = []
    for setting in settings:
        key, _, text = setting.partition("=")
        *parents, last = key.split(".")
        target: Any = content
        for parent in parents:
            target = target.get(parent) if isinstance(target, dict) else None
        if not isinstance(target, dict) or last not in target:
            known = [name for name, value in content.items() if not isinstance(value, str)]
            raise InputError(f"{setting}: the study has no {key}{suggest(key, known)}; --set gives one of every run")
        if isinstance(target[last], dict):
            selection[key] = select_names(key, text, [str(name) for name in target[last]])
            continue
        value = _parse_value(setting, target[last])
        if key != "seeds" and last != "root" and value != target[last]:
            changes.append(setting)
        target[last] = value
    return changes


def _parse_value(setting: str, old: Any) -> Any:
    """Read the value of a setting, which is of the kind of the old one: a text, a number above 0, or a list."""
    key, _, text = setting.partition("=")
    words = shlex.split(text) if key == "overrides" else text.split(",")
    try:
        values = [type(as_list(old)[0])(word) for word in (words if isinstance(old, list) else [text])]
    except ValueError:
        values = [0]
    numbers = [value for value in values if isinstance(value, int | float)]
    least = 2 if key == "folds" else 0
    is_short = isinstance(old, list) and numbers and len(numbers) != len(old)
    if (
        is_short
        or any(not least <= number < math.inf or not number for number in numbers)
        or numbers != sorted(numbers)
    ):
        example = ",".join(map(str, as_list(old)))
        raise InputError(f"{setting}: must be {'2 or more' if least else 'above 0'}, such as {example}")
    return values if isinstance(old, list) else values[0]


def _read_rows(entries: Any) -> dict[str, dict[str, Any]]:
    """Read the rows of a file, or those of the study that it names -> {name: their values}."""
    if isinstance(entries, str):
        return _read_rows(
            parse_yaml((REFERENCE / f"{entries}.yaml").read_text(encoding="utf-8"), with_aliases=True)["rows"]
        )
    return {name: {"overrides": entry} if isinstance(entry, list) else entry for name, entry in entries.items()}


def _read_datasets(entries: Any, selection: dict[str, list[str]], data: Path | None) -> dict[str, dict[str, Any]]:
    """Read the data sets -> {name: their values}; those without a place are not selected.

    Raises:
        InputError: if the user selects one without a place, or there is no file.
    """
    if isinstance(entries, list):  # choices of conf/dataset
        return {name: {"overrides": [f"dataset={name}"]} for name in entries}
    selected_names = selection.get("datasets", [])
    datasets = {name: dict(entry) for name, entry in entries.items()}
    for name, dataset in datasets.items():
        if "root" not in dataset:
            continue
        place = expand_home(dataset["root"])
        root = (data or Path()) / place
        if data is None and not place.is_absolute():
            if name in selected_names:
                raise InputError(f"datasets={name}: give --data /data, if it is /data/{place}")
            selection["datasets"] = [other for other in selection.get("datasets", datasets) if other != name]
        elif not root.exists() and name in (selected_names or datasets):
            raise InputError(f"{root}: no such file, which is the data set {name}")
        dataset["overrides"] = [*dataset.get("overrides", ()), f"dataset.root={quote(root.absolute())}"]
    return datasets


def _make_cells(content: Mapping[str, Any]) -> Iterator[Cell]:
    for dataset_name, dataset in content["datasets"].items():
        for condition_name in content.get("conditions", [""]):
            for name, row in content["rows"].items():
                is_there = name in dataset.get("rows", [name]) and condition_name in row.get(
                    "conditions", [condition_name]
                )
                if is_there:
                    yield _make_cell(content, (dataset_name, condition_name, name))


def _make_cell(content: Mapping[str, Any], key: Key) -> Cell:
    dataset_name, condition_name, name = key
    dataset, row, search = content["datasets"][dataset_name], content["rows"][name], content.get("search", {})
    condition = content.get("conditions", {}).get(condition_name, {})
    if "run" in row:
        base = Training.parse(row["run"])
    else:
        base = Training(dataset.get("experiment") or content["experiment"], tuple(row.get("overrides", ())))
    overrides = base.extended(row.get("datasets", {}).get(dataset_name, ())).overrides
    named = [content["each"].format(name)] if "each" in content else []
    shared = [*named, *dataset.get("overrides", ()), *content.get("overrides", ())]
    like_key = (dataset_name, condition_name, row["like"]) if "like" in row else None
    if like_key and row["like"] not in content["rows"]:
        raise InputError(f"row {name}: like: there is no {row['like']}")
    is_elsewhere = search.get("condition", condition_name) != condition_name
    return Cell(
        dataset=dataset_name,
        row=name,
        training=Training(base.experiment).extended([*shared, *overrides]),
        condition=condition_name,
        overrides=overrides,
        after=(*condition.get("overrides", ()), *content.get("tested", ())),
        part=row.get("part", ""),
        search=None if is_elsewhere or "of" in condition else _make_search(content, row, name),
        choice_from=(dataset_name, search["condition"], name) if is_elsewhere else like_key,
        study=condition.get("of", ""),
        folds=content.get("folds", 0),
    )


def _make_search(content: Mapping[str, Any], row: Mapping[str, Any], name: str) -> Search | None:
    """Make the search of a row; None if nothing is chosen for it."""
    search, values = content.get("search", {}), row.get("values", {})
    if ("tune" in row) != ("by" in row):
        raise InputError(f"row {name}: tune and by go together")
    score, overrides = row.get("by") or search.get("score", ""), tuple(search.get("overrides", ()))
    if "trials" in content:
        lowest, highest = content["rates"]
        ranges = [SearchedRange(RATE, lowest, highest, is_log=True)]
        ranges += [SearchedRange.spanning(key, [*map(_as_number, numbers)]) for key, numbers in values.items()]
        return Search(score, overrides, ranges=tuple(ranges), trials=content["trials"], name=name)
    steps = [
        *search.get("steps", ()),
        [f"{key}={value}" for key in values for value in values[key]],
        row.get("tune", ()),
    ]
    alternatives = tuple(tuple(tuple(shlex.split(choice)) for choice in step) for step in steps if step)
    return Search(score, overrides, steps=alternatives) if alternatives else None


def _as_number(value: Any) -> float:
    return value if isinstance(value, int) else float(value)  # YAML reads 3e-4 as text
