"""The tables of docs/performance.md, computed from docs/peers.json."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from dml.runtime.errors import InputError
from dml.runtime.text import markdown_table

MARKERS = ("<!-- peers -->", "<!-- /peers -->")
TITLES = {
    "dml": "dml",
    "dml_contiguous": "dml, `model.backbone.channels_last=false`",
    "pml": "pytorch-metric-learning",
    "oml": "open-metric-learning",
    "st": "sentence-transformers",
}
"""How the page calls each peer, by its name in the results."""
DATA = {"emoji": "emoji, 64 px", "photographs": "photographs, 112 px"}
MISSING = "–"
Run = Mapping[str, Any]
"""A measured process: peer, task, data, round, and its results."""


class Column(NamedTuple):
    """A column of a table: its head, the name of a result, of which processes, and how it is shown."""

    title: str
    value: str
    task: str
    data: str = "emoji"
    digits: int = 0
    factor: float = 1.0

    def format_cell(self, runs: Sequence[Run], peer: str) -> str:
        """Format the median over the rounds; a dash if it wasn't measured."""
        key = (peer, self.task, self.data)
        matching = [run for run in runs if (run["peer"], run["task"], run["data"]) == key]
        values = [run[self.value] for run in matching if run.get(self.value) is not None]
        return f"{self.factor * median(values):,.{self.digits}f}" if values else MISSING


TRAINING = (
    *(Column(f"{title}: images/s", "images_per_s", "train", data) for data, title in DATA.items()),
    Column("first step, s", "first_step_s", "train", digits=1),
    Column("peak MB", "peak_mb", "train"),
)
EVALUATION = (
    Column(f"{DATA['emoji']}: s", "evaluation_s", "evaluate", digits=1),
    Column("peak MB", "peak_mb", "evaluate"),
    Column(f"{DATA['photographs']}: s", "evaluation_s", "evaluate", "photographs", digits=1),
    Column("peak MB", "peak_mb", "evaluate", "photographs"),
    Column("metrics alone, ms", "metrics_s", "evaluate", factor=1000),
)
RECALLS = (Column("seconds", "target_s", "recall"), Column("steps", "target_step", "recall"))


def check_agreement(runs: Sequence[Run]) -> None:
    """Make sure that all peers began with the same weights, and found the same metrics of the same embeddings."""
    for value in ("weights", "exported_recall@1", "exported_map@r"):
        for data in {run["data"] for run in runs}:
            values = [(run["peer"], run[value]) for run in runs if run["data"] == data and run.get(value) is not None]
            for peer, number in values[1:]:
                if abs(number - values[0][1]) > 1e-6 * max(1.0, abs(number)):
                    raise InputError(f"{data}: {value} of {peer} is {number}, that of {values[0][0]} {values[0][1]}")


def format_page(measured: Mapping[str, Any]) -> str:
    """Format everything between the markers of the page, of the contents of docs/peers.json."""
    runs, settings = measured["runs"], measured["settings"]
    peers = [peer for peer in TITLES if any(run["peer"] == peer for run in runs)]
    parts = [
        describe_measurement(measured),
        "### Training",
        format_table(runs, peers, TRAINING),
        "### Evaluation",
        format_table(runs, peers, EVALUATION),
        "### Time to a recall@1",
        f"From the start of the process to the first validation with a recall@1 of {100 * settings['target']:.0f} %, "
        f"with one every {settings['every']} steps.",
        format_table(runs, peers, RECALLS),
    ]
    return "\n\n".join(["", *parts, ""])


def describe_measurement(measured: Mapping[str, Any]) -> str:
    """Describe the day and the machine, with a warning if it was busy."""
    settings, machine = measured["settings"], measured["machine"]
    busy = max(measured["load_before"][0], measured["load_after"][0]) > machine["cores"]
    warning = " **Other work ran on the machine: read these figures as rough ratios.**" if busy else ""
    return (
        f"Measured on {measured['day']}, on {machine['cores']} cores of {machine['processor']}, with "
        f"{settings['threads']} thread of PyTorch and {settings['workers']} loading process each.{warning} "
        "[peers.json](peers.json) has every process and all versions."
    )


def format_table(runs: Sequence[Run], peers: Sequence[str], columns: Sequence[Column]) -> str:
    """Format a table with a line for each peer; peers without any value are left out."""
    rows = [[TITLES[peer], *(column.format_cell(runs, peer) for column in columns)] for peer in peers]
    rows = [row for row in rows if {*row[1:]} != {MISSING}]
    return markdown_table(["", *(column.title for column in columns)], rows, right=range(1, len(columns) + 1))
