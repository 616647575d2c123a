"""An index of images, which finds the images that are most similar to others."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.contents import identify_images
from dml.inference import index_items
from dml.inference.certificates import certify
from dml.inference.embedder import Embedder, VectorsAlone, check_model
from dml.inference.image_inputs import Source, to_vectors, unpack_paths
from dml.inference.index_folder import hold_folder, open_newest, read_content, write_version
from dml.inference.index_items import IndexItems
from dml.inference.loading import load
from dml.inference.saved_folder import save_folder
from dml.inference.upgrades import UpgradeReport, upgrade_index
from dml.metrics.verification import Calibration
from dml.retrieval.adapters import Adapter
from dml.retrieval.vector_index import EXACT, VectorIndex
from dml.runtime.errors import InputError, check_whole
from dml.runtime.files import absolute_path, expand_home, in_one_line
from dml.runtime.text import printable

DEFAULT_NEIGHBORS = 10

logger = logging.getLogger(__name__)


class Index:
    """Images with their vectors, and the model that embedded them, or none.

    The vectors of an index are all of one model: those of another would be compared without meaning. While the index is
    upgraded, the model's vectors go through an ``adapter``. ``index.certificate`` is that of the last `check`.

    >>> import dml
    >>> index = dml.Index.build(dml.load("outputs/.../"), "photos")  # doctest: +SKIP
    >>> scores, paths = index.search("query.jpg", k=5)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Embedder,
        vectors: VectorIndex,
        items: IndexItems,
        next_id: int = 0,
        adapter: Adapter | None = None,
    ) -> None:
        self.model, self.vectors, self.items, self.adapter = model, vectors, items, adapter
        self._next_id = max(next_id, items.next_id)
        self.certificate: dict[str, Any] | None = None

    @classmethod
    def build(
        cls,
        model: Embedder | None = None,
        source: Source | None = None,
        *,
        vectors: Any = None,
        paths: Source | None = None,
        labels: Sequence[Any] | NDArray[Any] | None = None,
        factory: str = EXACT,
        parameters: str = "",
        **options: Any,
    ) -> "Index":
        """Embed images and make an index of them; or make one of vectors that are there, with or without a model.

        Args:
            source: folder or archive (.zip) of images, list of them (.csv, .tsv, .txt or .parquet), paths of
                images, or an `ImageTable`.
            vectors: (N, D) vectors of images, in place of ``source``; an array, a tensor or lists, which are
                L2-normalized.
            paths: images of the vectors, in their order; paths, which needn't exist, or anything else that ``source``
                takes.
            labels: (N,) names of the classes of the images, see `dml.data.cells.name_classes`; None, NaN and "" stand
                for none. None takes those of the images.
            factory: kind of the index, in the language of FAISS's ``index_factory``. "Flat" is exact; others, such as
                "IVF1024,Flat" or "HNSW32", are faster for many images and may miss neighbors.
            **options: further arguments of `ImageEmbedder.embed`, such as ``num_workers=2``. With
                ``on_corrupt="skip"`` unreadable images are left out.
        """
        images: Any = paths if source is None else source
        points = to_vectors(vectors)
        if model is None and isinstance(points, np.ndarray) and points.ndim:
            model = VectorsAlone(points.shape[-1])
        is_twice = source is not None and paths is not None
        if model is None or is_twice or (vectors is not None and (images is None or options)):
            raise InputError("Index.build: give a model and images, or vectors=... and paths=... alone")
        check_model(model)
        items = index_items.list_items(images, labels=labels)
        searchable = index_items.make_searchable(model, factory, parameters, len(items))
        if vectors is None:
            items, searched = index_items.embed_items(model, items, options)
        else:
            searched = index_items.check_vectors(points, model, len(items))
        index_items.fill(searchable, searched, items.ids)
        return cls(model, searchable, items)

    def __repr__(self) -> str:
        vectors = f", vectors of the model {self.space}" if self.adapter else ""
        return f"{type(self).__name__}({len(self)} images, factory={self.vectors.factory}, {self.model!r}{vectors})"

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: Any) -> "Index":
        """Return an index of some of the images, such as ``index[:100]``, in the order of this one, which stays."""
        is_kept, vectors = np.zeros(len(self), dtype=np.bool_), self.vectors.copy()
        is_kept[rows] = True
        vectors.remove(self.items.ids[~is_kept])
        return Index(self.model, vectors, self.items.take(is_kept), self._next_id, self.adapter)

    @property
    def space(self) -> str:
        """The fingerprint of the model whose vectors are compared; that of queries is ``index.model.fingerprint``."""
        return self.adapter.target if self.adapter else self.model.fingerprint

    @property
    def state(self) -> list[Any]:
        """What a certificate is of: an addition raises the next id, and a removal lowers the number of images."""
        return [self._next_id, len(self), self.space, self.vectors.parameters]

    @property
    def is_trained_on(self) -> bool:
        """Whether the model was trained or validated on the classes of all images: its errors here are unknown."""
        return index_items.are_all_seen(self.items, self.model.settings.seen_classes)

    @property
    def _scores_are_models(self) -> bool:
        """Whether scores are similarities of the model's own vectors, and of images like those of its thresholds."""
        return self.adapter is None and self.vectors.scores_are_precise and not self.is_trained_on

    @property
    def threshold(self) -> float | None:
        """The model's threshold of the nearest images, from which on one is judged to be of the query's class.

        None if it has none, or if scores may differ from cosine similarities by 0.01 or more: a PCA subtracts the mean
        of the vectors, and scores of short codes, such as PQ8, are off by 0.1 to 0.5. Another model's vectors have
        other similarities, and so have images of classes that the model was trained on, see `is_trained_on`.
        """
        return self.model.nearest_threshold if self._scores_are_models else None

    @property
    def calibration(self) -> Calibration | None:
        """The model's function that turns a similarity into a probability, for pairs of this index.

        Its prior is the share of pairs of one class by the labels of the index, or the model's if they don't tell.
        None if the model has no such function, or scores aren't similarities, see `threshold`.
        """
        calibration, share = self.model.calibration, self.items.same_share
        if not self._scores_are_models:
            return None
        return calibration if calibration is None or share is None else replace(calibration, prior=share)

    def search(self, images: Any, k: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
        """Find the images that are most similar to each query -> scores (Q, k) and paths (Q, k), best first.

        A score is the cosine similarity; in an index with a PCA, such as "PCA64,Flat", it is the product of vectors
        whose mean was subtracted. An image that is in the index finds itself first, or a copy that was indexed before
        it: images with equal scores are in the order of the index. Where an approximate index finds fewer than k, the
        path is an empty string and the score -inf. An image that can't be read is an UnreadableImageError.

        Args:
            images: queries, as `ImageEmbedder.embed` takes them; or their vectors (Q, D), an array, a tensor or lists,
                which are L2-normalized.
            k: number of neighbors, of which a smaller index finds as many as it holds; None takes 10.
        """
        scores, positions = self.search_positions(images, k)
        return scores, np.where(positions < 0, "", self.items.paths[positions]).astype(np.str_)

    def search_positions(self, images: Any, k: int | None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Do the work of `search` -> scores (Q, k), and positions (Q, k) in ``items``; -1 for none."""
        if not len(self):
            raise InputError("the index is empty; dml index, or dml.Index.add, puts images into it")
        k = min(DEFAULT_NEIGHBORS, len(self)) if k is None else k
        check_whole("k", k, 1)
        if k > len(self):
            logger.warning("k=%d: the index holds %d images, which are all found", k, len(self))
        scores, ids = self.vectors.search(self._embed_queries(images), min(int(k), len(self)))
        return np.where(ids < 0, -np.inf, scores), self.items.positions(ids)

    def _embed_queries(self, images: Any) -> NDArray[np.float32]:
        """Check vectors, or embed images, and map them to the space of the index. -> (Q, D)"""
        return self._map(index_items.embed_queries(self.model, images))

    def _map(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.adapter(vectors) if self.adapter and len(vectors) else vectors

    def check(
        self, queries: Any = 1000, k: int = 10, seed: int = 0, *, recall: float | None = None, vectors: Any = None
    ) -> dict[str, float]:
        """Measure the recall@k of the index against exact search -> recall, low, high and queries.

        The recall of a query is the share of its k nearest vectors that the index finds; of vectors that share the k-th
        score any count. ``recall`` is the mean over queries, and low and high are its 95 % interval by Clopper and
        Pearson, with a query as one trial. ``index.certificate`` also has the labels that are found the least.

        Args:
            queries: number of images of the index to draw, each of which excludes itself; or images or vectors, as
                `search` takes them, such as those that users searched by.
            recall: recall that low shall reach: the index takes the fastest search parameters that do so on as many
                other queries, in powers of two of nprobe, efSearch and k_factor_rf. Half of given queries choose them.
            vectors: (N, D) vectors of the images, to be searched exactly; None takes those that the index keeps. An
                index of codes keeps none but those that its codes stand for, and the line of the certificate says so.
        """
        given = int(queries) if isinstance(queries, Integral) else self._embed_queries(queries)
        found = certify(self.vectors, self.items.ids, self.items.labels.tolist(), given, k, seed, recall, vectors)
        self.certificate = found | {"state": self.state}
        return {name: found[name] for name in ("recall", "low", "high", "queries")}

    def add(self, source: Source, *, labels: Sequence[Any] | NDArray[Any] | None = None, **options: Any) -> int:
        """Embed images and add them, with labels (N,) if there are any, and return how many; see `build`."""
        return self._add(source, labels, options, replaces=False)

    def upsert(self, source: Source, *, labels: Sequence[Any] | NDArray[Any] | None = None, **options: Any) -> int:
        """Embed images and add them, or replace those with the same path, and return how many; see `build`.

        An image that comes without a label, such as one that is given by its path, keeps the one that it has.
        """
        return self._add(source, labels, options, replaces=True)

    def _add(self, source: Source, labels: Any, options: dict[str, Any], *, replaces: bool) -> int:
        items = index_items.list_items(source, self._next_id, labels)
        known = items.are_among(self.items.identities)
        if known.any() and not replaces:
            name = _name_first(items.paths[known].tolist())
            raise InputError(f"{name} in the index already; upsert replaces what is there")
        self.vectors.make_changeable()
        if known.any():
            self.vectors.check_removal()
            items = items.take_labels(self.items)
        items, embedded = index_items.embed_items(self.model, items, options)
        searched = self._map(embedded)
        if known.any():
            self._remove(self.items.are_among(items.identities))
        self.vectors.add(searched, items.ids)
        self.items = self.items.join(items)
        self._next_id = self.items.next_id
        return len(items)

    def remove(self, paths: str | Path | Iterable[str | Path]) -> int:
        """Remove images by their paths, as `search` returns them, and return how many."""
        removed = [*map(os.fspath, [paths] if isinstance(paths, str | Path) else unpack_paths(paths))]
        identities, known = identify_images(removed), set(self.items.identities)
        named = zip(removed, identities, strict=True)
        if unknown := sorted({absolute_path(path) for path, identity in named if identity not in known}):
            raise InputError(f"{_name_first(unknown)} not in the index")
        return self._remove(self.items.are_among(identities))

    def _remove(self, is_removed: NDArray[np.bool_]) -> int:
        self.vectors.make_changeable()
        self.vectors.remove(self.items.ids[is_removed])
        self.items = self.items.take(~is_removed)
        return int(is_removed.sum())

    def upgrade(
        self,
        new_model: Embedder,
        adapter: str = "auto",
        *,
        vectors: NDArray[Any] | None = None,
        dry_run: bool = False,
        **options: Any,
    ) -> UpgradeReport:
        """Search by a new model from now on, and report what that changes, see `dml.inference.upgrades`.

        Queries, and images that are added, are embedded by the new model and mapped to the vectors that are there. The
        command ``dml upgrade`` also replaces the vectors of a saved index.

        Args:
            adapter: "procrustes" or "affine"; "none" embeds all images again instead; "auto" takes the better adapter
                if it finds more than the old model, and else "none".
            vectors: (N, E) the new model's vectors of the images of the index, so that none is embedded; None embeds
                images.
            **options: ``pairs`` and ``seed`` of `dml.inference.upgrades.measure_upgrade`, or those of `build`.
        """
        check_model(new_model)
        return upgrade_index(self, new_model, adapter, vectors=vectors, dry_run=dry_run, **options)

    def replace_vectors(self, model: Embedder, vectors: NDArray[np.float32]) -> None:
        """Replace the model, and all vectors by those of the new one (N, D); the images of rows of NaN are removed."""
        items, read = index_items.leave_out(self.items, vectors)
        searchable = index_items.make_searchable(model, self.vectors.factory, self.vectors.parameters, len(items))
        index_items.fill(searchable, index_items.check_vectors(read, model), items.ids)
        self.model, self.vectors, self.items, self.adapter = model, searchable, items, None

    def save(self, folder: str | Path) -> Path:
        """Save the index and its model to a folder, which `load` opens anywhere, and return the folder's path.

        The files of a new version are written beside those of the old one, and ``index.json``, which names them, is
        replaced last: whatever interrupts it, the folder holds the old version or the new one. While another process
        writes the folder, this one waits.
        """
        with in_one_line(folder), hold_folder(folder, wait=True) as path:
            self.write(path)
        return path

    def write(self, path: Path) -> None:
        """Do the work of `save` in an absolute path, from which `hold_folder` keeps other processes."""
        writers: dict[str, Any] = {"vectors": self.vectors.write, "items": self.items.write}
        if self.adapter:
            writers["adapter"] = self.adapter.save
        if self.model.fingerprint:
            writers["model"] = lambda folder: save_folder(self.model, folder)
        facts = {
            "fingerprint": self.model.fingerprint,
            "dimension": self.vectors.dimension,
            "images": len(self),
            "next_id": self._next_id,
            "factory": self.vectors.factory,
            "parameters": self.vectors.parameters,
            "space": self.space,
        }
        write_version(
            path, facts | ({"certificate": self.certificate} if self.certificate else {}), writers, self.state
        )

    @classmethod
    def load(
        cls, folder: str | Path, model: Embedder | None = None, *, device: str = "auto", trust: bool = False
    ) -> "Index":
        """Open an index; its vectors stay on the disk until they are searched.

        Args:
            model: model that embeds the queries; None opens the one in the folder. It is the one that embedded the
                images. An index of vectors without a model takes any of their size.
            trust: whether the model may be built of unknown code, see `dml.load`.
        """
        path = expand_home(folder)
        return open_newest(path, partial(cls._open, path, model, device, trust))

    @classmethod
    def _open(
        cls, path: Path, model: Embedder | None, device: str, trust: bool, description: dict[str, Any]
    ) -> "Index":
        fingerprint, files = description["fingerprint"], description["files"]
        if model is None and fingerprint:
            model = load(path / files["model"], device=device, trust=trust)
        model = VectorsAlone(description["dimension"]) if model is None else model
        check_model(model)
        if fingerprint not in ("", model.fingerprint):
            raise InputError(
                f"{printable(path)}: its vectors are of the model {printable(fingerprint)}, not of "
                f"{model.fingerprint}; search with that model, or build the index again"
            )
        items, vectors, adapter = read_content(path, description)
        spaces = (adapter.source, adapter.target, len(adapter.matrix)) if adapter else None
        expected = (len(items), adapter.matrix.shape[1] if adapter else model.dimension)
        fits = (len(vectors), vectors.dimension) == expected
        if not fits or spaces not in (None, (fingerprint, description["space"], model.dimension)):
            raise InputError(
                f"{printable(path)}: its vectors, items, adapter and model don't fit; build the index again"
            )
        opened = cls(model, vectors, items, description["next_id"], adapter)
        opened.certificate = description["certificate"]
        return opened


def _name_first(paths: Sequence[str]) -> str:
    """Return the beginning of an error line about paths, such as "a.png and 2 more:"."""
    return printable(paths[0]) + (f" and {len(paths) - 1:,} more:" if len(paths) > 1 else ":")
