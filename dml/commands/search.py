"""The command ``dml search``."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.commands.command_parser import CommandParser
from dml.commands.error_lines import print_line
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home, shorten_path
from dml.runtime.imports import quick_imports
from dml.runtime.text import printable

if TYPE_CHECKING:
    from torch import Tensor

    from dml.inference import Index

DESCRIPTION = """\
Find the images of an index that are most similar to an image. The score is the
cosine similarity, at most 1. An image that is in the index finds
itself first. If the model has a threshold, "same" marks what is probably of
the query's class; the others may be. The percentage is the probability of it."""

EXAMPLES = {
    "dml search my_index query.jpg": "prints a table of the ten most similar images",
    "dml search my_index a.jpg b.jpg -k 5 --picture found.png": "draws five for each of two images",
    "dml search my_index a.jpg b.jpg --html found.html": "writes a page that needs no other file",
    "dml search my_index query.jpg#40,60,340,300": "searches by a part, between these edges in pixels",
    "dml search my_index query.jpg --json": "prints them for another program",
}


def search_images(arguments: Sequence[str]) -> None:
    """Print the neighbors of the images that the arguments of ``dml search`` name."""
    parser = CommandParser("search", DESCRIPTION, EXAMPLES)
    parser.add_argument("index", metavar="INDEX", help="folder of an index, which dml index wrote")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="images to search by")
    parser.add_argument("--model", help="model that embeds the images to search by (default: the one in the index)")
    parser.add_number("-k", "--k", default=None, meaning="number of neighbors (default: 10)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--picture", type=expand_home, metavar="FILE", help="file to draw the neighbors to, a PNG")
    parser.add_argument("--html", type=expand_home, metavar="FILE", help="file to write a page of the neighbors to")
    parser.add_device()
    parser.add_trust()
    options = parser.parse(arguments)
    with quick_imports():
        from dml.inference import Index, load  # after --help: it takes seconds

    _check_output("--picture", options.picture, ".png")
    _check_output("--html", options.html, ".html")
    place = {"device": options.device, "trust": options.trust}
    model = None if options.model is None else load(options.model, **place)
    index = Index.load(options.index, model, **place)
    scores, positions = index.search_positions(options.images, options.k)
    results = [
        {"query": query, "neighbors": _list_neighbors(index, *row)}
        for query, *row in zip(options.images, scores.tolist(), positions.tolist(), strict=True)
    ]
    print_line(json.dumps(results, indent=1) if options.json else "\n".join([*_format(results), *_describe(index)]))
    if options.picture:
        _draw(index, results, options.picture)
    if options.html:
        _write_page(index, Path(options.index).absolute().name, results, options.html)


def _check_output(option: str, path: Path | None, suffix: str) -> None:
    """Make sure that an option names a file to write, and no image that was meant as a query."""
    from dml.report.pictures import is_sheet

    if path is None:
        return
    if path.suffix.lower() != suffix or (suffix == ".png" and path.exists() and not is_sheet(path)):
        raise InputError(f"{option} {path}: must be a new {suffix} file, or one that dml search wrote")


def _list_neighbors(index: "Index", scores: list[float], positions: list[int]) -> list[dict[str, Any]]:
    """Return score, path and label of each neighbor of a query; an approximate index may find fewer than asked.

    ``same`` tells whether the score is at least the index's threshold, so that the image is probably of the query's
    class, ``probability`` how probable that is; they are missing if the index has none.
    """
    threshold, calibration = index.threshold, index.calibration
    return [
        {"score": score, "path": index.items.paths[position], "label": index.items.labels[position]}
        | ({} if threshold is None else {"same": score >= threshold})
        | ({} if calibration is None else {"probability": float(calibration.probability(score))})
        for score, position in zip(scores, positions, strict=True)
        if position >= 0
    ]


def _describe(index: "Index") -> Iterator[str]:
    """Yield what a reader of the table has to know about the index."""
    from dml.inference.certificates import describe

    if index.adapter:
        yield f"queries of the model {index.model.fingerprint}, vectors of {index.space}"
    if index.is_trained_on:
        yield "no threshold, no probabilities: the model was trained or validated on all classes of the index"
    if index.certificate:
        yield describe(index.certificate, index.state)


def _format(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table, without the columns that the index lacks."""
    for result in results:
        width = max((len(printable(neighbor["label"])) for neighbor in result["neighbors"]), default=0)
        yield printable(result["query"])
        for neighbor in result["neighbors"]:
            same = {None: "", True: "same  ", False: "      "}[neighbor.get("same")]
            probability = f"{neighbor['probability']:4.0%}  " if "probability" in neighbor else ""
            label, path = printable(neighbor["label"]), printable(shorten_path(neighbor["path"]))
            yield f"  {neighbor['score']:6.3f}  {same}{probability}{label:{width}}  {path}"


def _draw(index: "Index", results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw each query and its neighbors in a row."""
    from dml.report.pictures import QUERY, SAME, draw_sheet
    from dml.runtime.files import replacing

    rows = []
    for result in results:
        neighbors = [(neighbor["path"], SAME if neighbor.get("same") else "") for neighbor in result["neighbors"]]
        rows.append((str(result["query"]), [(result["query"], QUERY), *neighbors]))
    legend = None if index.threshold is None else {SAME: "probably of the query's class"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        draw_sheet(rows, partial, lambda image: _read(index, image), legend=legend)


def _write_page(index: "Index", name: str, results: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a page with each query and its neighbors; the results are as JSON has them."""
    from dml.evaluation.names import format_percent
    from dml.evaluation.threshold import describe_choice
    from dml.report.page import search_report
    from dml.runtime.files import write_text

    searches = {
        "index": name,
        "size": len(index),
        "threshold": index.threshold,
        "prior": format_percent(calibration.prior, digits=2) if (calibration := index.calibration) else "",
        "choice": describe_choice(index.model.threshold_errors, of_nearest=True),
    }
    write_text(path, search_report(searches, results, lambda image: _read(index, image)))


def _read(index: "Index", path: str) -> "Tensor":
    """Read an image to show it. -> (3, H, W) uint8 RGB"""
    from dml.data.images import read_image

    return read_image(str(expand_home(path)), index.model.settings.limits)
