"""The comments of the experiments on the papers' protocols, and the page that is made of them.

A comment that begins with "differs: " tells where an experiment departs from its paper, and why. A comment behind a
value that has "not stated" or the like in it tells who chose a value that the paper leaves unsaid.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import yaml

from dml.run.config_folders import CONF
from dml.runtime.configuration import flat, key_of
from dml.runtime.reading import parse_yaml
from dml.studies.pages import render
from dml.studies.paper_tables import PAPERS, PrintedNumber, Table, read_numbers, read_tables
from dml.studies.study import Training

DIFFERS = re.compile(r"differs(?: \((?P<metrics>[^)]*)\))?: (?P<text>.*)")
"""A comment on where an experiment differs from its paper's protocol, and why; of all metrics or of those in ()."""

UNSTATED = re.compile(r"\bstated\b|\bthe release\b")
"""A phrase in the comment behind a value that the paper doesn't state, or doesn't state for every use of the file."""

EXPERIMENT = "experiment/"


@dataclass(frozen=True)
class Difference:
    """A way in which a training or its test differs from the paper's protocol; of no metrics, it touches all."""

    text: str
    metrics: tuple[str, ...] = ()

    def touches(self, number: PrintedNumber) -> bool:
        """Return whether a printed number depends on the difference."""
        return not self.metrics or re.split(r"[@/]", number.metric)[0] in self.metrics


@dataclass(frozen=True)
class UnstatedValue:
    """A value that a paper doesn't state.

    Args:
        path: path of the file that sets the value, below conf/experiment.
        overrides: overrides that would set the value; none if the comment is about more than one line.
        comment: the file's comment on the value, which names who chose it.
    """

    path: str
    overrides: tuple[str, ...]
    comment: str


@dataclass(frozen=True)
class ExperimentFile:
    """One of the files that an experiment consists of.

    Args:
        path: path of the file below conf/experiment.
        includes: names of the experiment files that the file begins with.
        keys: dotted keys that the file sets; a group that it chooses is "loss", a value in it "loss.margin".
        differences: differences from the paper's protocol.
        unstated: values that the paper doesn't state.
    """

    path: str
    includes: tuple[str, ...]
    keys: frozenset[str]
    differences: tuple[Difference, ...]
    unstated: tuple[UnstatedValue, ...]


def find_differences(table: Table, number: PrintedNumber) -> list[Difference]:
    """Find where the trainings and tests of a number differ from the paper's protocol."""
    entry = table.find_entry(number.row, number.dataset)
    files = [file for cell in entry.cells for file in read_files(cell.training.experiment)]
    differences = [difference for file in files for difference in file.differences]
    differences += [Difference(sentence) for sentence in entry.differs]
    return [difference for difference in dict.fromkeys(differences) if difference.touches(number)]


def find_unstated_values(training: Training) -> list[UnstatedValue]:
    """Find the values of a training that its paper doesn't state, but for those that a later file or the row sets."""
    files, unstated = read_files(training.experiment), []
    for index, file in enumerate(files):
        later_keys = set(map(key_of, training.overrides)).union(*(later.keys for later in files[index + 1 :]))
        for value in file.unstated:
            overrides = tuple(override for override in value.overrides if key_of(override) not in later_keys)
            if overrides or not value.overrides:
                unstated.append(UnstatedValue(value.path, overrides, value.comment))
    return unstated


def read_files(experiment: str) -> list[ExperimentFile]:
    """Read the files of an experiment in the order in which Hydra merges them, each once, the experiment's last."""
    file = read_file(experiment)
    included = {included_file.path: included_file for name in file.includes for included_file in read_files(name)}
    return [*included.values(), file]


@cache
def read_file(experiment: str) -> ExperimentFile:
    """Read the values and the comments of one file of conf/experiment."""
    path = f"{experiment}.yaml"
    text = (CONF / EXPERIMENT / path).read_text(encoding="utf-8")
    values = parse_yaml(text, with_aliases=True) or {}
    defaults = [_read_default(entry) for entry in values.pop("defaults", [])]
    paragraphs = [(DIFFERS.fullmatch(paragraph), paragraph) for paragraph in _comment_paragraphs(text.splitlines())]
    sentences = [
        sentence for match, text in paragraphs if not match for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", text)
    ]
    lines, unstated = (
        _overrides_by_line(text),
        [UnstatedValue(path, (), sentence) for sentence in sentences if "not stated" in sentence],
    )
    for number, line in enumerate(text.splitlines()):
        content, _, comment = line.partition(" # ")
        if UNSTATED.search(comment) and not content.strip().startswith("#"):
            unstated.append(UnstatedValue(path, tuple(lines.get(number, ())), comment.strip()))
    return ExperimentFile(
        path,
        includes=tuple(group.removeprefix(EXPERIMENT) for group, choice in defaults if choice is None and "/" in group),
        keys=frozenset({group for group, choice in defaults if choice is not None} | set(flat(values))),
        differences=tuple(
            Difference(match["text"], tuple((match["metrics"] or "").replace(",", " ").split()))
            for match, _ in paragraphs
            if match
        ),
        unstated=tuple(unstated),
    )


def _read_default(entry: Any) -> tuple[str, str | None]:
    """Read an entry of Hydra's defaults list -> (group, choice): {"override /loss": "nra"} -> ("loss", "nra")."""
    group, choice = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
    return str(group).removeprefix("override ").removeprefix("/").rpartition("@")[2], choice


def _comment_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the comments of whole lines, joined; a paragraph ends at other lines, and before "differs: "."""
    paragraph: list[str] = []
    for line in [*(line.strip() for line in lines), ""]:
        comment = line.removeprefix("#").strip() if line.startswith("#") else ""
        if paragraph and (not comment or DIFFERS.match(comment) or comment.startswith("python ")):
            yield " ".join(paragraph)
            paragraph = []
        if comment and not comment.startswith(("@package", "python ")):
            paragraph.append(comment)


def _overrides_by_line(text: str) -> dict[int, list[str]]:
    """Return the overrides that have the effect of each line of a file, such as {7: ["loss=nra"]}."""
    values, by_line = parse_yaml(text, with_aliases=True) or {}, dict[int, list[str]]()
    flat_values = flat(values)

    def visit(node: yaml.MappingNode, prefix: str) -> None:
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            if path == "defaults":
                for entry, line in zip(values[path], value.value, strict=True):
                    group, choice = _read_default(entry)
                    by_line[line.start_mark.line] = [group if choice is None else f"{group}={choice}"]
            elif isinstance(value, yaml.MappingNode) and value.value:
                visit(value, f"{path}.")
            else:
                override = f"{path}={_format_value(flat_values[path])}"
                by_line.setdefault(key.start_mark.line, []).append(override)

    if isinstance(root := yaml.compose(text, yaml.SafeLoader), yaml.MappingNode):
        visit(root, "")
    return by_line


def _format_value(value: Any) -> str:
    """Format a value as an override spells it."""
    if isinstance(value, list):
        return f"[{','.join(map(_format_value, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def render_reproducibility_page() -> str:
    """Render docs/reproducibility.md: which numbers of each table can be trained as stated, and what differs."""
    papers = [
        _describe_paper(paper, list(tables)) for paper, tables in groupby(read_tables(), lambda table: table.paper)
    ]
    return render("reproducibility.md.j2", papers=papers)


def _describe_paper(paper: str, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the name of a paper, lines on its tables, the differences that these number, and its unstated values."""
    differences: dict[str, int] = {}
    lines = []
    for table in tables:
        number_differences = {number: find_differences(table, number) for number in table.numbers}
        quoted = sum(
            number.is_quoted and (number.paper, number.table) == (paper, table.name) for number in read_numbers()
        )
        marks = []
        for difference in dict.fromkeys(
            difference for differing in number_differences.values() for difference in differing
        ):
            touched = [number for number, differing in number_differences.items() if difference in differing]
            mark = str(differences.setdefault(difference.text, len(differences) + 1))
            marks.append(f"{mark}{_describe_scope(table, difference, touched)}")
        as_stated = sum(not differing for differing in number_differences.values())
        datasets = ", ".join(dict.fromkeys(number.dataset for number in table.numbers))
        lines.append((table.name, datasets, quoted, len(table.numbers), as_stated, ", ".join(marks)))
    unstated: dict[str, dict[str, dict[str, None]]] = {}
    for value in (
        value for table in tables for training in table.trainings for value in find_unstated_values(training)
    ):
        comments = unstated.setdefault(value.path.removeprefix(f"{paper}/"), {})
        comments.setdefault(value.comment, {}).update(dict.fromkeys(value.overrides))
    choices = [(comments, [path for path in unstated if unstated[path] == comments]) for comments in unstated.values()]
    choices = [choice for place, choice in enumerate(choices) if choice not in choices[:place]]
    return {"name": PAPERS[paper], "key": paper, "tables": lines, "differences": differences, "choices": choices}


def _describe_scope(table: Table, difference: Difference, touched: Sequence[PrintedNumber]) -> str:
    """Return the metrics and the rows that a difference touches, if it doesn't touch all of a table."""
    possible = [number for number in table.numbers if difference.touches(number)]
    scope = [f"`{metric}`" for metric in difference.metrics if len(possible) < len(table.numbers)]
    if len(touched) < len(possible):
        for row in dict.fromkeys(number.row for number in touched):
            datasets = list(dict.fromkeys(number.dataset for number in touched if number.row == row))
            is_whole = len(datasets) == len({number.dataset for number in possible if number.row == row})
            scope.append(f"`{row}`" if is_whole else f"`{row}` on {', '.join(datasets)}")
    return f" ({', '.join(scope)})" if scope else ""
