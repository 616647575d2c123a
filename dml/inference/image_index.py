"""An index of images, which finds the images that are most similar to others."""

import json
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from dml.inference.image_embedder import ImageEmbedder
from dml.inference.index_items import IndexItems, Source, list_source
from dml.inference.loading import load
from dml.metrics.pair_calibration import Calibration
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.files import replacing, write_text
from dml.ops.paths import expand_home
from dml.ops.poincare import product_distances, ranking_vectors
from dml.retrieval.vector_index import EXACT, VectorIndex

FORMAT = 1
"""The version of the files, which changes when older versions of dml can't read them."""

DESCRIPTION, MODEL = "index.json", "model"

MOST_TRAINING_VECTORS = 100_000
"""The largest number of vectors that an approximate index is trained with."""


class Index:
    """Images with their vectors, and the model that embedded them.

    The vectors of an index are all of one model: those of another would be compared without meaning.

    >>> import dml
    >>> index = dml.Index.build(dml.load("outputs/.../"), "photos")  # doctest: +SKIP
    >>> scores, paths = index.search("query.jpg", k=5)  # doctest: +SKIP

    Args:
        model: model that embeds images.
        vectors: the vectors by id.
        items: the images by id.
    """

    def __init__(self, model: ImageEmbedder, vectors: VectorIndex, items: IndexItems) -> None:
        self.model = model
        self.vectors = vectors
        self.items = items

    @classmethod
    def build(
        cls, model: ImageEmbedder, source: Source, *, factory: str = EXACT, parameters: str = "", **options: Any
    ) -> "Index":
        """Embed images and make an index of them.

        Args:
            model: model that embeds images.
            source: folder of images, .csv file as ``dataset=csv`` reads it, paths of images, or an `ImageTable`.
            factory: kind of the index, in the language of FAISS's ``index_factory``. "Flat" is exact; others, such as
                "IVF1024,Flat" or "HNSW32", are faster for many images and may miss neighbours.
            parameters: search parameters of an approximate index, such as "nprobe=32".
            **options: further arguments of `ImageEmbedder.embed`, such as ``num_workers=2``. With
                ``on_corrupt="skip"`` unreadable images are left out.

        Raises:
            InputError: if there is no image, or an argument can't be used.
        """
        paths, labels = list_source(source)
        vectors = VectorIndex(model.dimension + (2 if model.ball else 0), factory)
        vectors.set_parameters(parameters)
        items, searched = _embed_items(model, IndexItems.number(paths, labels), options)
        if vectors.needs_training:
            chosen = np.random.default_rng(0).permutation(len(searched))[:MOST_TRAINING_VECTORS]
            vectors.train(searched[np.sort(chosen)])
        vectors.add(searched, items.ids)
        return cls(model, vectors, items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def calibration(self) -> Calibration | None:
        """The model's function that turns a similarity into a probability, for pairs of this index.

        Its prior is the share of pairs of one class by the labels of the index, or the model's if they don't tell.
        None if the model has no such function.
        """
        calibration, share = self.model.calibration, self.items.same_share
        return calibration if calibration is None or share is None else replace(calibration, prior=share)

    def search(self, images: Any, k: int = 10) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
        """Find the images that are most similar to each query -> scores (Q, k) and paths (Q, k), best first.

        A score is the cosine similarity, or the negative distance in the model's Poincare ball. An image that is itself
        in the index finds itself first. Where an approximate index finds fewer than k, the path is an empty string and
        the score -inf.

        Args:
            images: queries, as `ImageEmbedder.embed` takes them; or their vectors, an array (Q, D) of floats.
            k: number of neighbours.

        Raises:
            InputError: if ``k`` is not between 1 and the number of images, or vectors have another size.
        """
        scores, positions = self.search_positions(images, k)
        return scores, np.where(positions < 0, "", self.items.paths[positions]).astype(np.str_)

    def search_positions(self, images: Any, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Do the work of `search` -> scores (Q, k), and positions (Q, k) in ``items``; -1 for none."""
        if not 1 <= k <= len(self):
            raise InputError(f"k={k}: the index holds {len(self)} images; k is from 1 to that number")
        is_vectors = isinstance(images, np.ndarray) and images.dtype.kind == "f"
        queries = np.atleast_2d(images).astype(np.float32) if is_vectors else self.model.embed(images)
        if queries.ndim != 2 or queries.shape[1] != self.model.dimension:
            raise InputError(
                f"vectors of shape {queries.shape}: the index has vectors of {self.model.dimension} numbers"
            )
        if not np.isfinite(queries).all():
            raise InputError("vectors: a number in them is NaN or infinite")
        scores, ids = self._search(queries, k)
        is_missing = ids < 0
        return np.where(is_missing, -np.inf, scores), np.where(is_missing, -1, self.items.positions(ids))

    def _search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search with vectors (Q, D) -> scores (Q, k) and ids (Q, k)."""
        ball = self.model.ball
        if ball is None:
            return self.vectors.search(queries, k)
        points = torch.from_numpy(queries)
        products, ids = self.vectors.search(ranking_vectors(points, ball.curvature)[0].numpy(), k)
        return -product_distances(points, torch.from_numpy(products), ball.curvature).numpy(), ids

    def add(self, source: Source, **options: Any) -> int:
        """Embed images and add them, and return how many.

        Args:
            source: images, as `build` takes them.
            **options: further arguments of `ImageEmbedder.embed`.

        Raises:
            InputError: if an image is in the index already; `upsert` replaces it.
        """
        return self._add(source, options, replaces=False)

    def upsert(self, source: Source, **options: Any) -> int:
        """Embed images and add them; those that are in the index already, by their paths, are replaced.

        Args:
            source: images, as `build` takes them.
            **options: further arguments of `ImageEmbedder.embed`.

        Returns:
            The number of embedded images.
        """
        return self._add(source, options, replaces=True)

    def _add(self, source: Source, options: dict[str, Any], *, replaces: bool) -> int:
        first_id = int(self.items.ids[-1]) + 1 if len(self) else 0
        items = IndexItems.number(*list_source(source), first_id)
        known = self.items.holds(items.paths.tolist())
        if known.any() and not replaces:
            raise InputError(
                f"{printable(items.paths[known][0])}: in the index already, as are {known.sum() - 1} more of these "
                "images; upsert replaces them"
            )
        items, searched = _embed_items(self.model, items, options)
        if known.any():
            self.remove(items.paths[self.items.holds(items.paths)].tolist())
        self.vectors.make_changeable()
        self.vectors.add(searched, items.ids)
        self.items = self.items.join(items)
        return len(items)

    def remove(self, paths: list[str]) -> int:
        """Remove images by their paths, as `search` returns them, and return how many.

        Raises:
            InputError: if a path isn't in the index, or this kind of index can't remove vectors.
        """
        unknown = sorted(set(paths) - set(self.items.paths.tolist()))
        if unknown:
            raise InputError(
                f"{printable(unknown[0])}: not in the index, as are {len(unknown) - 1} more of these paths"
            )
        removed = set(paths)
        is_removed = np.array([path in removed for path in self.items.paths], dtype=bool)
        self.vectors.make_changeable()
        self.vectors.remove(self.items.ids[is_removed])
        self.items = self.items.take(~is_removed)
        return int(is_removed.sum())

    def save(self, folder: str | Path) -> Path:
        """Save the index and its model to a folder, which `load` opens anywhere, and return the folder's path.

        The files of a new version are written beside those of the old one, and ``index.json``, which names them, is
        replaced last: whatever interrupts it, the folder holds the old version or the new one.

        Raises:
            InputError: if the folder holds something else.
        """
        path = expand_home(folder).absolute()
        if path.exists() and not (path / DESCRIPTION).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of an index")
        path.mkdir(parents=True, exist_ok=True)
        version = secrets.token_hex(4)
        names = {
            "vectors": f"vectors-{version}.faiss",
            "items": f"items-{version}.parquet",
            "model": f"model-{version}",
        }
        with replacing(path / names["vectors"]) as partial:
            self.vectors.write(partial)
        with replacing(path / names["items"]) as partial:
            self.items.write(partial)
        self.model.save_pretrained(path / names["model"])
        description = {
            "format": FORMAT,
            "fingerprint": self.model.fingerprint,
            "geometry": self.model.geometry,
            "dimension": self.vectors.dimension,
            "images": len(self),
            "factory": self.vectors.factory,
            "parameters": self.vectors.parameters,
            "files": names,
            "bytes": {kind: (path / names[kind]).stat().st_size for kind in ("vectors", "items")},
        }
        write_text(path / DESCRIPTION, json.dumps(description, indent=1) + "\n")
        _remove_old_versions(path, keep=set(names.values()))
        return path

    @classmethod
    def load(
        cls, folder: str | Path, model: ImageEmbedder | None = None, *, device: str = "auto", trust: bool = False
    ) -> "Index":
        """Open an index; its vectors stay on the disk until they are searched.

        Args:
            folder: folder that `save` wrote.
            model: model that embeds the queries; None opens the one in the folder.
            device: device that embeds the queries, if ``model`` is None.
            trust: whether the model may be built of unknown code, see `dml.load`.

        Raises:
            InputError: if there is no index, a file is missing or damaged, or the vectors are of another model.
        """
        path = expand_home(folder)
        description = _read_description(path)
        model = model or load(path / description["files"]["model"], device=device, trust=trust)
        if model.fingerprint != description["fingerprint"]:
            raise InputError(
                f"{printable(path)}: its vectors are of the model {printable(description['fingerprint'])}, not of "
                f"{model.fingerprint}; search with that model, or build the index again"
            )
        for kind, size in description["bytes"].items():
            file = path / description["files"][kind]
            if not file.is_file() or file.stat().st_size != size:
                raise InputError(
                    f"{printable(file)}: missing or cut short, {size:,} bytes are due; build the index again"
                )
        try:
            items = IndexItems.read(path / description["files"]["items"])
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise InputError(f"{printable(path)}: {description['files']['items']} is damaged ({error})") from error
        vectors = VectorIndex.read(path / description["files"]["vectors"], description["factory"])
        vectors.set_parameters(description["parameters"])
        if len(vectors) != len(items):
            raise InputError(
                f"{printable(path)}: {len(vectors)} vectors for {len(items)} images; build the index again"
            )
        return cls(model, vectors, items)


def _embed_items(
    model: ImageEmbedder, items: IndexItems, options: dict[str, Any]
) -> tuple[IndexItems, NDArray[np.float32]]:
    """Embed images -> the readable ones, and their vectors for the search by inner product.

    These are the embeddings (N, D) themselves, or vectors (N, D + 2) for the points of a Poincare ball.
    """
    embedded = model.embed(items.paths.tolist(), **options)
    is_read = ~np.isnan(embedded[:, 0])
    items, embedded = items.take(is_read), embedded[is_read]
    if model.ball is None:
        return items, embedded
    return items, ranking_vectors(torch.from_numpy(embedded), model.ball.curvature)[1].numpy()


def is_index(folder: str | Path) -> bool:
    """Return whether a folder holds an index."""
    return (expand_home(folder) / DESCRIPTION).is_file()


def _read_description(path: Path) -> dict[str, Any]:
    """Read and check index.json of an index's folder."""
    file = path / DESCRIPTION
    if not file.is_file():
        raise InputError(f"{printable(path)}: no index there; dml index, or dml.Index.build and save, makes one")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        version = description["format"]
        names = [description["files"][kind] for kind in ("vectors", "items", "model")]
        keys = [description[key] for key in ("fingerprint", "factory", "parameters", "bytes")]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{printable(file)}: damaged ({type(error).__name__}); build the index again") from error
    if version != FORMAT:
        raise InputError(f"{printable(path)}: of format {version}, this version of dml reads {FORMAT}; update dml")
    if any(os.path.basename(name) != name for name in names) or not all(isinstance(key, str) for key in keys[:3]):
        raise InputError(f"{printable(file)}: damaged (its files are outside of the folder); build the index again")
    return dict(description)


def _remove_old_versions(path: Path, keep: set[str]) -> None:
    """Delete the files of other versions than the one to keep, also those that a killed process left."""
    for entry in path.iterdir():
        if entry.name.startswith(("vectors-", "items-", "model-")) and entry.name not in keep:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
