"""Searches of an index, as a page shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dml.report.pictures import SAME
from dml.report.sheets import COLUMNS, MOST_ROWS, CaptionedPicture, QueryResult, Tiles
from dml.runtime.errors import InputError


@dataclass(frozen=True)
class FoundImage:
    """An image that a search found.

    Args:
        path: path of the image.
        label: name of its class; empty if none is known.
        score: similarity to the query.
        same: whether the image is surely of the query's class: its score is at least the model's threshold; None if the
            model has none.
        probability: probability that the image is of the query's class; None if the model has none.
    """

    path: str
    label: str
    score: float
    same: bool | None
    probability: float | None = None


@dataclass(frozen=True)
class ImageSearches:
    """Searches of one index.

    Args:
        index: name of the index.
        size: number of its images.
        score: meaning of a score, in words.
        threshold: score from which on two images are judged to be of one class; None if the model has no threshold.
        found: pairs of a query's path and what was found, best first.
        prior: share of pairs of one class for which the probabilities are, in percent; empty if the model has none.
        choice: description of the chosen threshold, as the end of a sentence.
    """

    index: str
    size: int
    score: str
    threshold: float | None
    found: Sequence[tuple[str, Sequence[FoundImage]]]
    prior: str = ""
    choice: str = ""


def make_search_results(searches: ImageSearches, tiles: Tiles) -> list[QueryResult]:
    """Make what a page shows of searches; files are named without their folders, since a page is passed on.

    Args:
        searches: the searches to show.
        tiles: sheet of the page's pictures, to which those of the queries and of the found images are added.

    Raises:
        InputError: if the pictures are too many for one sheet.
    """
    results = [
        QueryResult(
            CaptionedPicture(tiles.place(query), _name_file(query)), "", (), [[_show(image, tiles) for image in images]]
        )
        for query, images in searches.found
    ]
    if tiles.rows > MOST_ROWS:
        raise InputError(
            f"the page would have {len(tiles):,} pictures, at most {MOST_ROWS * COLUMNS:,} fit; give fewer images or a "
            "smaller -k"
        )
    return results


def _show(image: FoundImage, tiles: Tiles) -> CaptionedPicture:
    name = _name_file(image.path)
    relation = SAME if image.same else ""  # what is below the threshold is unsure, and no error
    probability = "" if image.probability is None else f"{100 * image.probability:.0f} %"
    caption = " ".join(filter(None, (image.label or name, f"{image.score:.3f}", relation, probability)))
    return CaptionedPicture(tiles.place(image.path), caption, relation, name)


def _name_file(path: str) -> str:
    """Return the name of a file, whichever slash its path has."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
