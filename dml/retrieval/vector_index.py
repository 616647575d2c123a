"""An index of vectors that can be changed, saved and opened again: FAISS with ids of one's choice."""

import copy
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import faiss
import numpy as np

from dml.retrieval.search import (
    LARGEST_K,
    Floats,
    Integers,
    copy_to_gpus,
    multiplying_few_queries,
    search_with_ties,
    sort_ties,
)
from dml.runtime.errors import InputError, suggest

logger = logging.getLogger(__name__)

EXACT = "Flat"
"""FAISS's name of the exact index."""

TRIAL_VECTORS = 300
"""The largest number of vectors on which a kind of index is tried: codes of 8 bits need 256."""

TRIED = {"nprobe": range(31), "efSearch": range(4, 11), "k_factor_rf": range(7)}
"""The powers of two of the search parameters that `VectorIndex.list_parameters` lists; the first are FAISS's own."""

PRECISE_NUMBERS = (
    faiss.ScalarQuantizer.QT_8bit,
    faiss.ScalarQuantizer.QT_8bit_uniform,
    faiss.ScalarQuantizer.QT_fp16,
    faiss.ScalarQuantizer.QT_bf16,
)
"""The codes of single numbers that change the inner product of two unit vectors by less than 0.01.

Measured on vectors of 32 dimensions: 8 bits change it by up to 0.004, 6 bits by 0.016, 4 bits by 0.07, and product or
residual codes by 0.14 to 0.5.
"""

FEW_VECTORS = re.compile(rb"WARNING clustering \d+ points to \d+ centroids: please provide at least (\d+).*\n")
STDERR = 2
_reading, _gpu_search = Lock(), Lock()
"""Held by the one thread that may change FAISS's limit of the bytes of a vector, or search on its GPUs."""


class VectorIndex:
    """Vectors with ids, searched by inner product, on FAISS's GPUs if it has some and they search such an index.

    >>> index = VectorIndex(2)
    >>> index.add(np.eye(2, dtype=np.float32), np.array([7, 9]))
    >>> scores, ids = index.search(np.array([[0.0, 1.0]], np.float32), k=1)
    >>> ids.tolist()
    [[9]]

    Args:
        factory: description of the index in the language of FAISS's ``index_factory``: "Flat" is exact; others, such
            as "IVF1024,Flat" or "HNSW32", are faster and may miss neighbors.
    """

    def __init__(self, dimension: int, factory: str = EXACT) -> None:
        self.factory, self.parameters, self._is_mapped = factory, "", False
        try:
            inner = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        except (RuntimeError, TypeError) as error:
            number = next(iter(re.findall(r"\d+", str(factory))), 64)
            known = (EXACT, "SQ8", f"IVF{number},Flat", f"IVF{number},SQ8", f"HNSW{number}")
            line = f"factory={factory}: FAISS makes no index of {dimension} dimensions by it"
            raise InputError(f"{line}{suggest(str(factory), known)}; {EXACT} is exact") from error
        _check_metric(inner, factory)
        self._index: Any = inner if find_lists(inner) is not None else faiss.IndexIDMap2(inner)

    @contextmanager
    def _refusing(self, task: str) -> Iterator[None]:
        """Turn FAISS's error in the body into an `InputError`; the C++ function and line number are left out."""
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(re.split(r":\d+: (?:Error: )?", str(error))[-1].split())
            parameters = f", parameters={self.parameters}" if self.parameters else ""
            raise InputError(
                f"factory={self.factory}{parameters}: FAISS can't {task} ({reason}); build it with others, {EXACT} "
                "would do"
            ) from error

    @classmethod
    def check(cls, dimension: int, factory: str, parameters: str, count: int) -> None:
        """Make sure, on a few random vectors, that an index of this kind takes ``count`` vectors and finds them.

        It is tried with one cell. Codes that need more vectors to be trained, of more than 8 bits, are not tried.
        """
        lists = faiss.try_extract_index_ivf(cls(dimension, factory)._index)
        if lists is not None and lists.nlist > count:
            raise InputError(f"factory={factory}: {lists.nlist:,} cells for {count:,} vectors; {EXACT} needs no cells")
        trial = cls(dimension, re.sub(r"\bIVF\d+", "IVF1", factory))
        trial.factory = factory  # for error lines
        trial.set_parameters(parameters)
        number = min(count, TRIAL_VECTORS)
        vectors = np.random.default_rng(0).normal(size=(number, dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        try:
            trial.train(vectors, is_trial=True)
        except InputError:
            if number == count:
                raise
            return
        trial.add(vectors, np.arange(number))
        trial.search(vectors[:1], k=1)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """The size D of the vectors."""
        return int(self._index.d)

    @property
    def needs_training(self) -> bool:
        """Whether the index has to see vectors by `train` before it takes some."""
        return not self._index.is_trained

    @property
    def keeps_products(self) -> bool:
        """Whether what the index does with its vectors, before it encodes them, keeps their inner products."""
        return _keeps_products(self._index)

    @property
    def scores_are_precise(self) -> bool:
        """Whether scores are the inner products of the vectors to 0.01, see `PRECISE_NUMBERS`."""
        return _keeps_products(self._index) and _keeps_numbers(self._index)

    def set_parameters(self, parameters: str) -> None:
        """Set the search parameters of an approximate index, such as "nprobe=32"; "" leaves FAISS's own."""
        if parameters:
            try:
                space: Any = faiss.ParameterSpace()
                space.set_index_parameters(self._index, str(parameters))
            except (RuntimeError, ValueError) as error:
                line = f"parameters={parameters}: an index {self.factory} has no such search parameter"
                raise InputError(line) from error
        self.parameters = parameters
        self._forget_copy()

    def list_parameters(self) -> list[list[str]]:
        """List the search parameters to try, in powers of two: in each list the cheapest first; [[""]] without any."""
        lists, codes = faiss.try_extract_index_ivf(self._index), find_codes(self._index)
        others = [part for part in self.parameters.split(",") if part.partition("=")[0] not in TRIED]
        powers = {name: [f"{name}={2**exponent}" for exponent in exponents] for name, exponents in TRIED.items()}
        depths = powers["efSearch"] if isinstance(codes, faiss.IndexHNSW) else [""]
        if lists is not None:
            depths = powers["nprobe"][: lists.nlist.bit_length()]
        factors = powers["k_factor_rf"] if isinstance(find_core(self._index), faiss.IndexRefine) else [""]
        table = [[",".join(filter(None, (*others, factor, depth))) for depth in depths] for factor in factors]
        return table if len(depths) > 1 else [[row[0] for row in table]]

    def train(self, vectors: Floats, *, is_trial: bool = False) -> None:
        """Find the cells or codes of an approximate index from vectors (N, D); an exact index needs none."""
        with self._refusing(f"train it with {len(vectors)} vectors"):
            recommended = train_index(self._index, _contiguous(vectors), self.parameters)
        if recommended and not is_trial:
            logger.warning(
                "factory=%s: it is trained with %s vectors, and FAISS asks for %s; it may miss more neighbors",
                *(self.factory, f"{len(vectors):,}", f"{recommended:,}"),
            )

    def add(self, vectors: Floats, ids: Integers) -> None:
        """Add vectors (N, D) with ids (N,), which the index must not hold yet."""
        with self._refusing("add vectors to such an index"):
            self._index.add_with_ids(_contiguous(vectors), np.ascontiguousarray(ids, np.int64))
        self._forget_copy()

    def reconstruct(self, ids: Integers) -> Floats:
        """Return the vectors with these ids (N,) -> (N, D), as exactly as the index keeps them."""
        index, library = self._index, faiss  # type: Any, Any
        with self._refusing("give back the vectors of such an index"):
            if isinstance(find_core(index), faiss.IndexIVFFastScan):
                raise RuntimeError("its codes are packed")  # noqa: TRY004 - FAISS would read memory that isn't there
            if find_lists(index) is not None:
                index = _clone(index)  # the map from ids to places is a change
                find_lists(index).set_direct_map_type(library.DirectMap.Hashtable)
            vectors: Floats = index.reconstruct_batch(np.ascontiguousarray(ids, np.int64))
        return vectors

    def check_removal(self) -> None:
        """Make sure that vectors can be removed."""
        self.remove(np.empty(0, np.int64))

    def remove(self, ids: Integers) -> int:
        """Remove the vectors with these ids (N,), and return how many there were."""
        with self._refusing("remove or replace vectors of such an index"):
            if isinstance(find_core(self._index), faiss.IndexFastScan | faiss.IndexIVFFastScan):
                # after a removal and an addition, FAISS finds wrong vectors
                raise RuntimeError("its codes are packed")  # noqa: TRY004
            removed = int(self._index.remove_ids(np.ascontiguousarray(ids, np.int64)))
        self._forget_copy()
        return removed

    def search(self, queries: Floats, k: int) -> tuple[Floats, Integers]:
        """Find the k vectors with the largest inner products -> scores (Q, k) and ids (Q, k), best first.

        Vectors with equal scores are in the order of their ids; an exact index finds those with the smallest ids, see
        `search_with_ties`. An approximate index may find fewer than k: then the last ids are -1.
        """
        if isinstance(find_core(self._index), faiss.IndexFlat):
            return search_with_ties(self._search, queries, k, len(self))
        return sort_ties(*self._search(queries, k))

    def _search(self, queries: Floats, k: int) -> tuple[Floats, Integers]:
        with self._refusing("search such an index"), multiplying_few_queries(self.dimension):
            with _gpu_search:
                found: Any = None
                if k <= LARGEST_K and self._gpu_copy is not None:
                    found = self._gpu_copy.search(_contiguous(queries), k)
            scores, ids = found or self._index.search(_contiguous(queries), k)
        return scores, ids

    @cached_property
    def _gpu_copy(self) -> Any:
        """The copy of the index on FAISS's GPUs; None if there are none for it, see `copy_to_gpus`."""
        return copy_to_gpus(self._index)

    def _forget_copy(self) -> None:
        """Let the next search copy the changed index to FAISS's GPUs."""
        vars(self).pop("_gpu_copy", None)

    def write(self, path: Path) -> None:
        """Write the index to a file; an error of the disk is an OSError."""
        library: Any = faiss  # its type stubs lack the writer
        with path.open("wb") as file:  # FAISS's own one doesn't tell that the last bytes could not be written
            faiss.write_index(self._index, library.PyCallbackIOWriter(file.write))

    @classmethod
    def read(cls, path: Path, factory: str) -> "VectorIndex":
        """Open the index in a file; its vectors stay on the disk until they are used, where FAISS can do so."""
        # A vector that claims more bytes than the file has is refused before FAISS takes the memory for it.
        set_limit = getattr(faiss, "set_deserialization_vector_byte_limit", lambda _: None)  # older versions have none
        with _reading:
            try:
                set_limit(path.stat().st_size)
                index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
            except (RuntimeError, MemoryError) as error:
                raise InputError(f"{path}: no index that can be read; build it again") from error
            finally:
                set_limit(1 << 40)  # FAISS's own
        _check_metric(index, factory)
        opened = cls.__new__(cls)
        opened.factory, opened.parameters, opened._index, opened._is_mapped = factory, "", index, True
        return opened

    def copy(self) -> "VectorIndex":
        """Return a copy in memory."""
        copied = copy.copy(self)
        copied._is_mapped = True
        copied.make_changeable()
        return copied

    def make_changeable(self) -> None:
        """Read an index that stays on the disk into memory, so that it can be changed."""
        if self._is_mapped:
            self._index, self._is_mapped = _clone(self._index), False
            self.set_parameters(self.parameters)  # FAISS's files don't hold all of them


def _clone(index: Any) -> Any:
    return faiss.deserialize_index(faiss.serialize_index(index))


def _contiguous(vectors: Floats) -> Floats:
    return np.ascontiguousarray(vectors, np.float32)


def _check_metric(index: Any, factory: str) -> None:
    """Refuse an index that compares by distance although FAISS was asked for inner products, such as HNSW32,PQ16."""
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise InputError(
            f"factory={factory}: FAISS searches such an index by distance, not by inner product; {EXACT} would do"
        )


def find_core(index: Any) -> Any:
    """Return the index inside of an index that only has ids, or only transforms the vectors."""
    index = faiss.downcast_index(index)
    return find_core(index.index) if isinstance(index, faiss.IndexIDMap | faiss.IndexPreTransform) else index


def find_codes(index: Any) -> Any:
    """Return the part of an index that searches codes of the vectors, whatever computes the scores anew after it."""
    core = find_core(index)
    return find_codes(core.base_index) if isinstance(core, faiss.IndexRefine) else core


def find_lists(index: Any) -> Any:
    """Return the part of an index that keeps the vectors in inverted lists, with ids of its own; None without one.

    `faiss.IndexIDMap2` around such an index finds other images after a removal: it moves its ids, and the lists don't.
    """
    core = find_core(index)
    return core if isinstance(core, faiss.IndexIVF) else None


def _keeps_products(index: Any) -> bool:
    """Return whether the transforms of vectors by an index keep the inner products: rotations alone do."""
    index = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if not isinstance(index, faiss.IndexPreTransform):
        return True
    chain: Any = index.chain
    transforms = [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]
    return all(map(_is_rotation, transforms))


def _is_rotation(transform: Any) -> bool:
    """Return whether a transform of vectors keeps their inner products; a file has a trained matrix as a linear one."""
    is_linear = type(transform) is faiss.LinearTransform and transform.is_orthonormal and not transform.have_bias
    is_matrix = isinstance(transform, faiss.RandomRotationMatrix | faiss.OPQMatrix)
    return transform.d_in == transform.d_out and (is_matrix or is_linear)


def _keeps_numbers(index: Any) -> bool:
    """Return whether an index computes its scores from numbers of at least 8 bits, see `PRECISE_NUMBERS`."""
    core = find_core(index)
    if isinstance(core, faiss.IndexRefine):
        return _keeps_numbers(core.refine_index)
    if isinstance(core, faiss.IndexHNSW | faiss.IndexNSG):
        graph: Any = core  # the type stubs of FAISS lack the storage of some
        return _keeps_numbers(graph.storage)
    if isinstance(core, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer):
        return core.sq.qtype in PRECISE_NUMBERS
    return isinstance(core, faiss.IndexFlat | faiss.IndexIVFFlat)


def train_index(index: Any, vectors: Floats, parameters: str) -> int:
    """Find the cells or codes of an index of FAISS from contiguous float32 vectors (N, D); a RuntimeError is FAISS's.

    -> the number of vectors that FAISS asks for, if there are fewer; 0 if there are enough. FAISS prints it, up to a
    thousand times, to the file descriptor of stderr. What else is printed there appears after the training.
    """
    codes: Any = find_codes(index)
    if hasattr(codes, "do_polysemous_training"):
        # an order of the codes that only a search with this parameter uses; finding it takes a second for each byte
        codes.do_polysemous_training = "ht=" in parameters
    cells: Any = faiss.try_extract_index_ivf(index)
    on_gpus = None if cells is None else copy_to_gpus(faiss.IndexFlat(cells.d, cells.metric_type))
    if on_gpus is not None:
        cells.clustering_index = on_gpus
    stderr = os.dup(STDERR)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), STDERR)
        try:
            index.train(vectors)
        finally:
            if on_gpus is not None:
                cells.clustering_index, on_gpus.thisown = None, True  # or nobody would free it
            os.dup2(stderr, STDERR)
            os.close(stderr)
            printed.seek(0)
            text = printed.read()
            os.write(STDERR, FEW_VECTORS.sub(b"", text))
    return max(map(int, FEW_VECTORS.findall(text)), default=0)
