"""The comments of an experiment's files on its paper's protocol: what differs, and what the paper leaves unstated."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dml.ops.configuration.nested import flat
from dml.ops.configuration.overrides import key_of
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.tables.paper_tables import Cell, Table, Training
from dml.run.config_folders import CONF

DIFFERS = re.compile(r"differs(?: \((?P<metrics>[^)]*)\))?: (?P<text>.*)")
"""A comment on where an experiment differs from its paper's protocol, and why; of all metrics or of those in ()."""

UNSTATED = re.compile(r"\bstated\b|\bthe release\b")
"""A phrase in the comment behind a value that the paper doesn't state, or doesn't state for every use of the file."""


@dataclass(frozen=True)
class Difference:
    """A way in which a training or its test differs from the paper's protocol.

    Args:
        text: sentence that says what differs, and why.
        metrics: names of the metrics that the difference touches, such as "h_ap"; none of them for all metrics.
    """

    text: str
    metrics: tuple[str, ...] = ()

    def touches(self, cell: Cell) -> bool:
        """Return whether a cell's number depends on the difference."""
        return not self.metrics or re.split(r"[@/]", cell.metric)[0] in self.metrics


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
        differences: differences from the paper's protocol, read from the comments that begin with "differs: ".
        unstated: values that the paper doesn't state.
    """

    path: str
    includes: tuple[str, ...]
    keys: frozenset[str]
    differences: tuple[Difference, ...]
    unstated: tuple[UnstatedValue, ...]


def find_differences(table: Table, cell: Cell) -> list[Difference]:
    """Find where a cell's trainings and tests differ from the paper's protocol, by their files and the row's entry."""
    source = table.find_source(cell.row, cell.dataset)
    files = [file for training in source.trainings for file in read_files(training.experiment)]
    differences = [difference for file in files for difference in file.differences]
    differences += [Difference(sentence) for sentence in source.differs]
    return [difference for difference in dict.fromkeys(differences) if difference.touches(cell)]


def find_unstated_values(training: Training) -> list[UnstatedValue]:
    """Find the values of a training that its paper doesn't state, but for those that a later file or the row sets."""
    files, unstated = read_files(training.experiment), []
    row_keys = set(map(key_of, training.overrides))
    for index, file in enumerate(files):
        later_keys = row_keys.union(*(later.keys for later in files[index + 1 :]))
        for value in file.unstated:
            overrides = tuple(override for override in value.overrides if key_of(override) not in later_keys)
            if overrides or not value.overrides:
                unstated.append(UnstatedValue(value.path, overrides, value.comment))
    return unstated


def read_files(experiment: str) -> list[ExperimentFile]:
    """Read the files of an experiment in the order in which Hydra merges them, each once, the experiment's last."""
    files_by_path: dict[str, ExperimentFile] = {}
    file = read_file(experiment)
    for name in file.includes:
        files_by_path |= {included.path: included for included in read_files(name)}
    return [*files_by_path.values(), file]


@cache
def read_file(experiment: str) -> ExperimentFile:
    """Read the values and the comments of one file of conf/experiment."""
    path = f"{experiment}.yaml"
    text = (CONF / "experiment" / path).read_text(encoding="utf-8")
    values = parse_yaml(text) or {}
    defaults = [_read_default(entry) for entry in values.pop("defaults", [])]
    prefix = "experiment/"
    includes = tuple(group.removeprefix(prefix) for group, choice in defaults if choice is None and prefix in group)
    groups = {group for group, choice in defaults if choice is not None}
    paragraphs = list(_comment_paragraphs(text.splitlines()))
    differences = tuple(_read_difference(paragraph) for paragraph in paragraphs if DIFFERS.match(paragraph))
    prose = (paragraph for paragraph in paragraphs if not DIFFERS.match(paragraph))
    sentences = (sentence for paragraph in prose for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph))
    general = [UnstatedValue(path, (), sentence) for sentence in sentences if "not stated" in sentence]
    inline = [UnstatedValue(path, overrides, comment) for overrides, comment in _inline_comments(text.splitlines())]
    keys = frozenset(groups | set(flat(values)))
    return ExperimentFile(path, includes, keys, differences, (*general, *inline))


def _read_default(entry: Any) -> tuple[str, str | None]:
    """Read an entry of Hydra's defaults list -> (group, choice): {"override /loss": "nra"} -> ("loss", "nra")."""
    group, choice = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
    name = str(group).removeprefix("override ").removeprefix("/")
    return name.rpartition("@")[2], choice


def _read_difference(paragraph: str) -> Difference:
    """Read "differs: text" or "differs (h_ap, asi): text"."""
    match = DIFFERS.fullmatch(paragraph)
    assert match is not None
    return Difference(match["text"], tuple((match["metrics"] or "").replace(",", " ").split()))


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


def _inline_comments(lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the overrides of each value that the paper doesn't state, with the comment behind the value."""
    parents: list[tuple[int, str]] = []  # indentation and key of the lines that the current one is nested in
    for line in lines:
        content, _, comment = line.partition(" # ")
        entry = content.strip()
        if not entry or entry.startswith("#"):
            continue
        indent = len(content) - len(content.lstrip())
        parents = [(depth, key) for depth, key in parents if depth < indent]
        prefix = "".join(f"{key}." for _, key in parents)
        if not entry.startswith("- "):
            parents.append((indent, entry.partition(":")[0]))
        if UNSTATED.search(comment):
            yield tuple(_line_overrides(entry, prefix)), comment.strip()


def _line_overrides(line: str, prefix: str) -> Iterator[str]:
    """Yield the overrides that have the effect of a line of YAML: "- override /loss: nra" -> "loss=nra"."""
    if line.startswith("- "):
        group, choice = _read_default(parse_yaml(line[2:]))
        yield f"{group}={choice}" if choice is not None else group
    else:
        yield from (f"{prefix}{key}={_format_value(value)}" for key, value in flat(parse_yaml(line)).items())


def _format_value(value: Any) -> str:
    """Format a value as an override spells it."""
    if isinstance(value, list):
        return f"[{','.join(map(_format_value, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
