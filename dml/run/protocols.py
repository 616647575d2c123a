"""What an experiment's files say of its paper's protocol: what differs, and which values the paper doesn't state."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from dml.ops.nested import flat
from dml.run.config_folders import CONF
from dml.run.stored import key_of
from dml.run.tables import Cell, Table, Training

DIFFERS = re.compile(r"differs(?: \((?P<metrics>[^)]*)\))?: (?P<text>.*)")
"""A comment that says where an experiment differs from its paper's protocol, and why; of some metrics or of all."""

UNSAID = re.compile(r"\bstated\b|\bthe release\b")
"""What a comment holds if the paper doesn't state the value, or not for all that the file is of."""


@dataclass(frozen=True)
class Difference:
    """Where a training or its test differs from the paper's protocol.

    Args:
        text: what differs, and why.
        metrics: the metrics that it touches, as "h_ap"; none: all of them.
    """

    text: str
    metrics: tuple[str, ...] = ()

    def touches(self, cell: Cell) -> bool:
        """Whether the cell's number is a result of what differs."""
        return not self.metrics or re.split(r"[@/]", cell.metric)[0] in self.metrics


@dataclass(frozen=True)
class Choice:
    """A value that a paper doesn't state.

    Args:
        path: the file that sets the value, below conf/experiment.
        values: the overrides that would set it; none if the comment is about more than one line.
        comment: what the file says of the value, and who chose it.
    """

    path: str
    values: tuple[str, ...]
    comment: str


@dataclass(frozen=True)
class Part:
    """One of the files that an experiment is made of.

    Args:
        path: of the file, below conf/experiment.
        includes: the names of the experiment files that it begins with.
        keys: what it sets, in dotted form; a group that it chooses is "loss", its values are "loss.margin".
        differences: from the paper's protocol: the comments that begin with "differs: ".
        choices: the values that the paper doesn't state.
    """

    path: str
    includes: tuple[str, ...]
    keys: frozenset[str]
    differences: tuple[Difference, ...]
    choices: tuple[Choice, ...]


def parts(experiment: str) -> list[Part]:
    """The files of an experiment in the order in which Hydra merges them, each once, its own last."""
    found: dict[str, Part] = {}
    own = read_part(experiment)
    for name in own.includes:
        found |= {part.path: part for part in parts(name)}
    return [*found.values(), own]


@cache
def read_part(experiment: str) -> Part:
    """Reads one file of conf/experiment, its values and its comments."""
    path = f"{experiment}.yaml"
    text = (CONF / "experiment" / path).read_text(encoding="utf-8")
    values = yaml.safe_load(text) or {}
    defaults = [_default(entry) for entry in values.pop("defaults", [])]
    prefix = "experiment/"
    includes = tuple(group.removeprefix(prefix) for group, choice in defaults if choice is None and prefix in group)
    groups = {group for group, choice in defaults if choice is not None}
    paragraphs = list(_paragraphs(text.splitlines()))
    differences = tuple(_difference(line) for line in paragraphs if DIFFERS.match(line))
    prose = (line for line in paragraphs if not DIFFERS.match(line))
    said = (sentence for line in prose for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", line))
    general = [Choice(path, (), sentence) for sentence in said if "not stated" in sentence]
    inline = [Choice(path, overrides, comment) for overrides, comment in _inline(text.splitlines())]
    return Part(path, includes, frozenset(groups | set(flat(values))), differences, (*general, *inline))


def _default(entry: Any) -> tuple[str, str | None]:
    """An entry of Hydra's defaults list -> (group, choice): {"override /loss": "nra"} -> ("loss", "nra")."""
    group, choice = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
    name = str(group).removeprefix("override ").removeprefix("/")
    return name.rpartition("@")[2], choice


def _difference(line: str) -> Difference:
    """Reads "differs: text", or "differs (h_ap, asi): text"."""
    match = DIFFERS.fullmatch(line)
    assert match is not None
    return Difference(match["text"], tuple((match["metrics"] or "").replace(",", " ").split()))


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """The comments of whole lines, joined: a paragraph ends with other lines, and before "differs: "."""
    words: list[str] = []
    for line in [*(line.strip() for line in lines), ""]:
        comment = line.removeprefix("#").strip() if line.startswith("#") else ""
        if words and (not comment or DIFFERS.match(comment) or comment.startswith("python ")):
            yield " ".join(words)
            words = []
        if comment and not comment.startswith(("@package", "python ")):
            words.append(comment)


def _inline(lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The comments behind values that the paper doesn't state, and the overrides that would set the values."""
    above: list[tuple[int, str]] = []
    for line in lines:
        content, _, comment = line.partition(" # ")
        name = content.strip()
        if not name or name.startswith("#"):
            continue
        indent = len(content) - len(content.lstrip())
        above = [(depth, key) for depth, key in above if depth < indent]
        prefix = "".join(f"{key}." for _, key in above)
        if not name.startswith("- "):
            above.append((indent, name.partition(":")[0]))
        if UNSAID.search(comment):
            yield tuple(_overrides(name, prefix)), comment.strip()


def _overrides(line: str, prefix: str) -> Iterator[str]:
    """The overrides that say what a line does: "- override /loss: nra" -> "loss=nra"."""
    if line.startswith("- "):
        group, choice = _default(yaml.safe_load(line[2:]))
        yield f"{group}={choice}" if choice is not None else group
    else:
        yield from (f"{prefix}{key}={_shown(value)}" for key, value in flat(yaml.safe_load(line)).items())


def _shown(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def differences(table: Table, cell: Cell) -> list[Difference]:
    """Where a cell's trainings and tests differ from the paper's protocol: by their files, and by the row's entry."""
    source = table.source(cell.row, cell.dataset)
    files = [part for training in source.trainings for part in parts(training.experiment)]
    found = [difference for part in files for difference in part.differences]
    own = [Difference(text) for text in source.differs]
    return [difference for difference in dict.fromkeys([*found, *own]) if difference.touches(cell)]


def choices(training: Training) -> list[Choice]:
    """The values of a training that its paper doesn't state, without those that a later file or the row replaces."""
    files, found = parts(training.experiment), []
    for index, part in enumerate(files):
        later = {key for other in files[index + 1 :] for key in other.keys} | set(map(key_of, training.overrides))
        for choice in part.choices:
            kept = tuple(override for override in choice.values if key_of(override) not in later)
            if kept or not choice.values:
                found.append(Choice(choice.path, kept, choice.comment))
    return found
