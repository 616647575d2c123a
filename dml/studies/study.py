"""A study: the trainings that it compares, as its YAML file describes them."""

import fnmatch
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from dml.run.config_folders import quote
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError, check_whole, suggest
from dml.runtime.files import expand_home
from dml.runtime.reading import parse_yaml

REFERENCE = Path(__file__).parent / "reference"
"""The folder of the studies, and of the papers' numbers."""

Key = tuple[str, str, str]
"""The data set, the condition and the row of a cell."""

Overrides = tuple[str, ...]
Scored = tuple[Overrides, float]
"""Overrides that were tried, and their score; larger is better."""


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


@dataclass(frozen=True)
class Cell:
    """What a study compares: a row on a data set, under a condition."""

    dataset: str
    row: str
    training: Training
    condition: str = ""
    after: Overrides = ()  # overrides of the tested trainings alone, behind those that a search chose
    part: str = ""  # prefix of the metrics in metrics.json, such as "heads/H"; "" for the whole embedding
    search: Search | None = None
    choice_from: Key | None = None  # the cell of another condition whose chosen overrides this one takes

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


@dataclass(frozen=True)
class Study:
    """Trainings that are compared, and how their results are shown."""

    name: str
    cells: tuple[Cell, ...]
    content: Mapping[str, Any]
    is_table: bool = False  # a paper's, whose runs keep checkpoints and all metrics, not just those of queries by class
    keeps_models: bool = False  # whether tested runs keep best.ckpt
    metrics: tuple[str, ...] = ()  # ends of the names of further metrics that are kept of each run; "" for all
    seeds: int = 3  # runs of each training; their seeds count from 0
    outputs: Path = Path("outputs")  # folder of the runs, unless the user names another
    selection: Mapping[str, Collection[str]] = field(default_factory=dict)  # names to train; all of what isn't named
    changes: tuple[str, ...] = ()  # settings with which it isn't that of its file

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
            if all(part in self.selection.get(name, [part]) for name, part in zip(names, cell.key, strict=True))
        ]

    def name_results(self, departures: Sequence[str] = ()) -> str:
        """Return the name of the files of results: a study changed by ``departures`` doesn't replace its own."""
        changed = sorted([*self.changes, *departures])
        return f"{self.name}-{sha256(shlex.join(changed).encode()).hexdigest()[:8]}" if changed else self.name


def read_study(path: Path, settings: Sequence[str] = (), data: Path | None = None) -> Study:
    """Read a study from its file; docs/sweeps.md describes its keys and settings, such as "rows=rll,*softmax"."""
    content = parse_yaml(path.read_text(encoding="utf-8"), with_aliases=True)
    try:
        rows = content["rows"].items()
        content["rows"] = {name: {"overrides": row} if isinstance(row, list) else row for name, row in rows}
        selection = {key: [*map(str, names)] for key, names in content.get("default", {}).items()}
        changes = apply_settings(content, settings, selection)
        content["datasets"] = _read_datasets(content["datasets"], selection, data)
        keys = product(content["datasets"], content.get("conditions", [""]), content["rows"])
        cells = tuple(_make_cell(content, key) for key in keys)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: describes no study ({type(error).__name__}: {error})") from error
    return Study(
        name=path.stem,
        cells=cells,
        content=content,
        keeps_models=bool(content.get("keep_models")),
        metrics=tuple(content.get("metrics", ())),
        seeds=content["seeds"],
        outputs=Path("outputs") / path.stem,
        selection=selection,
        changes=tuple(changes),
    )


def select_names(kind: str, text: str, known: Collection[str]) -> list[str]:
    """Select names by a list such as "rll,*softmax"."""
    selected: dict[str, None] = {}
    for pattern in text.split(","):
        names = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not names:
            raise InputError(f"{kind}={pattern}: there is none{suggest(pattern, known)}")
        selected |= dict.fromkeys(names)
    return list(selected)


def apply_settings(content: dict[str, Any], settings: Sequence[str], selection: dict[str, list[str]]) -> list[str]:
    """Apply settings to the values and selections of a study, in place -> the settings that change its trainings."""
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
    """Read the value of a setting, which is of the kind of the old one: a text, texts, or a number above 0."""
    key, _, text = setting.partition("=")
    if not isinstance(old, int):
        return text.split(",") if isinstance(old, list) else text
    number = int(text) if text.isdecimal() else text
    check_whole(key, number, least=1)
    return number


def _read_datasets(entries: Any, selection: dict[str, list[str]], data: Path | None) -> dict[str, dict[str, Any]]:
    """Read the data sets -> {name: their values}; those without a place are not selected."""
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


def _make_cell(content: Mapping[str, Any], key: Key) -> Cell:
    dataset_name, condition_name, name = key
    dataset, row, search = content["datasets"][dataset_name], content["rows"][name], content.get("search", {})
    condition = content.get("conditions", {}).get(condition_name, {})
    named = [content["each"].format(name)] if "each" in content else []
    overrides = [*named, *dataset.get("overrides", ()), *row.get("overrides", ())]
    searched = search.get("condition", condition_name)
    is_elsewhere = searched != condition_name
    tested = tuple(condition.get("overrides", ()))
    return Cell(
        dataset=dataset_name,
        row=name,
        training=Training(dataset["experiment"]).extended(overrides if is_elsewhere else (*overrides, *tested)),
        condition=condition_name,
        after=tested if is_elsewhere else (),
        search=None if is_elsewhere else _make_search({**search, **condition}, row.get("values", {})),
        choice_from=(dataset_name, searched, name) if is_elsewhere else None,
    )


def _make_search(search: Mapping[str, Any], values: Mapping[str, Any]) -> Search | None:
    """Make the search of a row; None if nothing is chosen for it."""
    steps = [*search.get("steps", ()), [f"{key}={value}" for key in values for value in values[key]]]
    alternatives = tuple(tuple(step) for step in steps if step)
    return Search(search["score"], alternatives) if alternatives else None
