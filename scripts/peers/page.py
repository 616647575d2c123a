"""The tables of docs/performance.md, computed from docs/peers.json."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from dml.ops.errors import InputError
from dml.ops.text_tables import markdown_table
from peers.protocol import LOSSES

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
MAIN_LOSS = "multi_similarity"
PERCENT = 100.0

Run = Mapping[str, Any]
"""A measured process: peer, task, data, loss, round, and its results."""


def median_of(
    runs: Sequence[Run], value: str, peer: str, task: str, data: str, loss: str = MAIN_LOSS
) -> float | None:
    """Return the median of a value over the rounds; None if it wasn't measured."""
    key = {"peer": peer, "task": task, "data": data, "loss": loss}
    values = [run[value] for run in runs if all(run[name] == key[name] for name in key) and run.get(value) is not None]
    return median(values) if values else None


def check_agreement(runs: Sequence[Run]) -> None:
    """Make sure that all peers began with the same weights, and found the same metrics of the same embeddings.

    Raises:
        InputError: if one differs from the first.
    """
    for value, tolerance in (("weights", 1e-6), ("given_recall@1", 1e-6), ("given_map@r", 1e-6)):
        for data in {run["data"] for run in runs}:
            values = [(run["peer"], run[value]) for run in runs if run["data"] == data and run.get(value) is not None]
            for peer, number in values[1:]:
                if abs(number - values[0][1]) > tolerance * max(1.0, abs(number)):
                    raise InputError(f"{data}: {value} of {peer} is {number}, that of {values[0][0]} {values[0][1]}")


def format_page(measured: Mapping[str, Any]) -> str:
    """Format everything between the markers of the page.

    Args:
        measured: contents of docs/peers.json.
    """
    runs = measured["runs"]
    peers = [peer for peer in TITLES if any(run["peer"] == peer for run in runs)]
    parts = [
        describe_measurement(measured),
        "### Training",
        format_training(runs, peers),
        "### Losses",
        format_losses(runs, peers),
        "### Evaluation",
        format_evaluation(runs, peers),
        "### Time to a recall@1",
        format_recalls(measured, peers),
    ]
    return "\n\n".join(["", *parts, ""])


def describe_measurement(measured: Mapping[str, Any]) -> str:
    """Describe the machine, the day, the load and the versions."""
    before, after = (", ".join(f"{load:.1f}" for load in measured[name]) for name in ("load_before", "load_after"))
    settings = measured["settings"]
    versions = {peer: ", ".join(f"{k} {v}" for k, v in found.items()) for peer, found in measured["versions"].items()}
    lines = [f"- {TITLES[peer]}: {versions[peer]}" for peer in TITLES if peer in versions]
    busy = max(measured["load_before"][0], measured["load_after"][0]) > measured["machine"]["cores"]
    warning = " **Other work ran on the machine: read these figures as rough ratios.**" if busy else ""
    machine = measured["machine"]
    return (
        f"Measured on {measured['day']}, on {machine['cores']} cores of {machine['processor']} under "
        f"{machine['system']}, without a GPU, with {settings['threads']} thread of PyTorch and {settings['workers']} "
        f"loading process each, in {measured['minutes']:.0f} minutes. Load of the machine (1, 5 and 15 minutes) before "
        f"the first process: {before}; after the last one: {after}.{warning}\n\n" + "\n".join(lines)
    )


def format_training(runs: Sequence[Run], peers: Sequence[str]) -> str:
    """Format the images per second with `MAIN_LOSS`, and the seconds to the first step."""
    columns: list[tuple[str, Callable[[str], str]]] = []
    for data, title in DATA.items():
        columns += [
            (f"{title}: images/s", lambda peer, data=data: number(median_of(runs, "images_per_s", peer, "train", data))),
            ("in memory", lambda peer, data=data: number(median_of(runs, "images_per_s", peer, "memory", data))),
        ]
    columns += [("first step, s", lambda peer: number(median_of(runs, "first_step_s", peer, "train", "emoji"), 1))]
    columns += [("peak MB", lambda peer: number(median_of(runs, "peak_mb", peer, "train", "emoji")))]
    return format_columns(peers, columns)


def format_losses(runs: Sequence[Run], peers: Sequence[str]) -> str:
    """Format the images per second with each loss on emoji."""
    columns: list[tuple[str, Callable[[str], str]]] = [
        (f"`{loss}`", lambda peer, loss=loss: number(median_of(runs, "images_per_s", peer, "train", "emoji", loss)))
        for loss in LOSSES
    ]
    return format_columns(peers, columns)


def format_evaluation(runs: Sequence[Run], peers: Sequence[str]) -> str:
    """Format the time and memory of an evaluation, and what each peer found with the first weights."""
    columns: list[tuple[str, Callable[[str], str]]] = []
    for data, title in DATA.items():
        columns += [
            (f"{title}: s", lambda peer, data=data: number(median_of(runs, "evaluation_s", peer, "evaluate", data), 1)),
            ("peak MB", lambda peer, data=data: number(median_of(runs, "peak_mb", peer, "evaluate", data))),
            (
                "recall@1 / MAP@R, %",
                lambda peer, data=data: " / ".join(
                    percent(median_of(runs, name, peer, "evaluate", data)) for name in ("recall@1", "map@r")
                ),
            ),
        ]
    columns += [
        ("metrics alone, ms", lambda peer: number(thousandfold(median_of(runs, "metrics_s", peer, "evaluate", "emoji")))),
        (
            "of given embeddings, %",
            lambda peer: " / ".join(
                percent(median_of(runs, f"given_{name}", peer, "evaluate", "emoji")) for name in ("recall@1", "map@r")
            ),
        ),
    ]
    return format_columns(peers, columns)


def format_recalls(measured: Mapping[str, Any], peers: Sequence[str]) -> str:
    """Format the time to the recall@1 that the settings name."""
    runs, settings = measured["runs"], measured["settings"]
    columns: list[tuple[str, Callable[[str], str]]] = [
        ("seconds", lambda peer: number(median_of(runs, "target_s", peer, "recall", "emoji"))),
        ("steps", lambda peer: number(median_of(runs, "target_step", peer, "recall", "emoji"))),
    ]
    sentence = (
        f"Seconds from the start of the process to the first validation with a recall@1 of "
        f"{PERCENT * settings['target']:.0f} %, with a validation every {settings['every']} steps."
    )
    return f"{sentence}\n\n{format_columns(peers, columns)}"


def format_columns(peers: Sequence[str], columns: Sequence[tuple[str, Callable[[str], str]]]) -> str:
    """Format a table with a line for each peer; peers without any value are left out."""
    rows = [[TITLES[peer], *(cell(peer) for _, cell in columns)] for peer in peers]
    rows = [row for row in rows if set("".join(row[1:])) - set("– /")]
    return markdown_table(["", *(title for title, _ in columns)], rows, right=range(1, len(columns) + 1))


def number(value: float | None, digits: int = 0) -> str:
    """Format a number; a dash if it wasn't measured."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """Format a share in percent; a dash if it wasn't measured."""
    return number(None if value is None else PERCENT * value, 2)


def thousandfold(value: float | None) -> float | None:
    """Return seconds in milliseconds; None stays None."""
    return None if value is None else 1000 * value
