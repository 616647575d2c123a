"""Searches of an index for several clients at a time, by images that they upload and by items of the index."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.exceptions import HTTPException

from dml.data.contents import read_stamps
from dml.data.images import ImageFile, ImageLimits, ImageMemoryError, UnreadableImageError, without_remedy
from dml.inference.image_index import Index
from dml.inference.index_folder import DESCRIPTION
from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

UPLOAD_LIMITS = ImageLimits(max_image_bytes=20 << 20, max_pixels=64_000_000)
"""The largest upload, unless the command says otherwise: the photographs of most cameras are smaller."""

MOST_PROPORTIONS = 100  # of an upload's sides: scaled by its shorter side, an image of one row would take all memory
DEEPENING = 4  # by which a search for a label looks at more neighbors if there were too few of the label

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """An image of the index, as clients see it."""

    item: int  # number of the image
    name: str  # name of its file, without the folder
    label: str  # name of its class; empty if none is known


@dataclass(frozen=True)
class Neighbor(Item):
    """An image of the index that a search found."""

    score: float
    same: bool | None  # whether the score is at least `dml.Index.threshold`; None if the index has none
    probability: float | None  # that both are of one class, by `dml.Index.calibration`, if there is one


class ImageSearch:
    """An index that several threads search; only one at a time is in the network.

    A request that can't be answered raises an `HTTPException`, whose line names no path to the client.
    """

    def __init__(self, index: Index, limits: ImageLimits = UPLOAD_LIMITS) -> None:
        self.index = index
        self.limits = replace(limits, background=index.model.settings.limits.background)
        labels = [printable(label) for label in index.items.labels]
        self._codes_by_label = {label: code for code, label in enumerate(sorted({*labels}))}
        self._codes = np.fromiter(map(self._codes_by_label.__getitem__, labels), np.int64, len(labels))
        counts = Counter(labels)
        self.count_by_label = {label: counts[label] for label in self._codes_by_label if label}

    def find_similar(self, content: bytes, k: int, label: str | None = None) -> list[Neighbor]:
        """Find the images that are most similar to an uploaded image, best first."""
        code = self._find_code(label)  # before the image is decoded
        with _explained_upload():
            return self._search(self._open_upload(content), k, code)

    def find_similar_to_item(self, item: int, k: int, label: str | None = None) -> list[Neighbor]:
        """Find the images that are most similar to an item; it finds itself first. See `find_similar`."""
        code = self._find_code(label)
        with self._opened_item(item) as file:
            return self._search(file, k, code)

    def list_items(self, offset: int, limit: int, label: str | None = None) -> tuple[int, list[Item]]:
        """List the items of the index in its order -> the number of all with the label, and those of one page."""
        code = self._find_code(label)
        positions = np.arange(len(self.index)) if code is None else np.flatnonzero(self._codes == code)
        return len(positions), [self._describe(position) for position in positions[offset : offset + limit].tolist()]

    def get_item(self, item: int) -> Item:
        """Return the item of a number."""
        return self._describe(self._find_position(item))

    def draw_item(self, item: int, size: int) -> bytes:
        """Return an item's picture as a JPEG file, scaled down to fit into ``size`` x ``size`` pixels.

        The file itself is never sent: it may hold more than its pixels, such as the place where it was taken, and what
        lies at its path now may be no image any more.
        """
        with self._opened_item(item) as file:
            scale = min(1.0, size / max(file.height, file.width))
            pixels = file.pixels(at_least=(int(scale * file.height), int(scale * file.width)))
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        picture.thumbnail((size, size))
        content = BytesIO()
        picture.save(content, "JPEG", quality=90, subsampling=0)
        return content.getvalue()

    def _search(self, file: ImageFile, k: int, code: int | None) -> list[Neighbor]:
        model, threshold, calibration = self.index.model, self.index.threshold, self.index.calibration
        vectors = model.embed_batch(model.preprocess(file, model.settings.views)[None])
        scores, positions = self._find_nearest(vectors, k, code)
        return [
            Neighbor(
                **vars(self._describe(position)),
                score=score,
                same=None if threshold is None else score >= threshold,
                probability=float(calibration.probability(score)) if calibration else None,
            )
            for score, position in zip(scores.tolist(), positions.tolist(), strict=True)
        ]

    def _find_nearest(
        self, vectors: NDArray[np.float32], k: int, code: int | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search with a vector (1, D) -> scores and positions of up to k neighbors with a label's code, best first."""
        size = len(self.index)
        count = size if code is None else int((self._codes == code).sum())
        if not count:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        depth = min(size, k if code is None else 2 * k * size // count)
        while True:
            scores, positions = (rows[0] for rows in self.index.search_positions(vectors, depth))
            is_wanted = positions >= 0
            is_exhausted = depth == size or not is_wanted.all()
            if code is not None:
                is_wanted &= self._codes[positions] == code
            if is_exhausted or np.count_nonzero(is_wanted) >= min(k, count):
                return scores[is_wanted][:k], positions[is_wanted][:k]
            depth = min(size, DEEPENING * depth)

    def _find_code(self, label: str | None) -> int | None:
        if label is None or label in self._codes_by_label:
            return None if label is None else self._codes_by_label[label]
        raise HTTPException(404, f"label={printable(label)}: no image of the index has it; /api/labels lists all")

    def _find_position(self, item: int) -> int:
        ids = self.index.items.ids
        position = int(np.searchsorted(ids, item))
        if position == len(ids) or ids[position] != item:
            raise HTTPException(404, f"item {item}: the index has no item of this number; /api/items lists them")
        return position

    def _describe(self, position: int) -> Item:
        items = self.index.items
        name = items.paths[position].replace("\\", "/").rpartition("/")[2]
        return Item(int(items.ids[position]), printable(name), printable(items.labels[position]))

    def _open_upload(self, content: bytes) -> ImageFile:
        most = self.limits.max_image_bytes
        if not content:
            raise HTTPException(400, "upload: empty; send the bytes of an image file as the body of the request")
        if len(content) > most:
            raise HTTPException(413, f"upload: more than {most:,} bytes; send a smaller image")
        file = ImageFile("upload", self.limits, content)
        if max(file.size) > MOST_PROPORTIONS * min(file.size):
            line = (
                f"{file.width:,} x {file.height:,} pixels; no side may be more than {MOST_PROPORTIONS} times the other"
            )
            raise HTTPException(422, f"upload: {line}")
        return file

    @contextmanager
    def _opened_item(self, item: int) -> Iterator[ImageFile]:
        """Open an item's file; of an error in the ``with`` body, the client isn't told the path, which is logged."""
        path = self.index.items.paths[self._find_position(item)]
        try:
            yield ImageFile(path, self.index.model.settings.limits)
        except (UnreadableImageError, ImageMemoryError) as error:
            logger.warning("item %d: %s", item, without_remedy(error))
            raise HTTPException(410, f"item {item}: its image file can't be read any more") from error


@contextmanager
def _explained_upload() -> Iterator[None]:
    """Explain errors of an uploaded image to the client, who can't change the options that they name."""
    try:
        yield
    except ImageMemoryError as error:
        raise HTTPException(503, "upload: the memory ran out while it was decoded; send a smaller image") from error
    except UnreadableImageError as error:
        if isinstance(error.__cause__, RefusedFileError):
            raise HTTPException(413, f"upload: {error.__cause__.reason}") from error
        raise HTTPException(422, without_remedy(error).removeprefix("image ")) from error


class ServedIndex:
    """The index of a folder, which is opened again when another process, such as ``dml upgrade``, has replaced it."""

    def __init__(self, folder: Path, open_index: Callable[[], Index], limits: ImageLimits = UPLOAD_LIMITS) -> None:
        self._description, self._open_index, self._opening = str(folder / DESCRIPTION), open_index, Lock()
        self._stamp = read_stamps([self._description]).tolist()
        self._search = ImageSearch(open_index(), limits)

    def find_search(self) -> ImageSearch:
        """Return the search in the newest state; while one thread opens it, the others get that in the state before."""
        stamp = read_stamps([self._description]).tolist()
        if stamp != self._stamp and self._opening.acquire(blocking=False):
            try:
                self._stamp = stamp
                self._search = ImageSearch(self._open_index(), self._search.limits)
            except (InputError, OSError) as error:
                logger.warning("the index was replaced, and its state before is served on: %s", error)
            finally:
                self._opening.release()
        return self._search
