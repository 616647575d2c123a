"""An index of vectors that can be changed, saved and opened again: FAISS with ids of one's choice."""

import copy
import logging
import os
import re
import tempfile
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
from dml.runtime.errors import InputError

logger = logging.getLogger(__name__)

EXACT = "Flat"
"""FAISS's name of the exact index."""

QUERIES_PER_BLOCK = 4096
"""Number of queries that are searched at a time."""

TRIAL_VECTORS = 300
"""The largest number of vectors on which a kind of index is tried: codes of 8 bits need 256."""

DEFAULT_LIMIT = 1 << 40
"""FAISS's own limit of the bytes of a vector in a file."""
TRIED = {"nprobe": range(31), "efSearch": range(4, 11), "k_factor_rf": range(7)}
"""The powers of two of the search parameters that `VectorIndex.list_parameters` lists; the first are FAISS's own."""
_reading = Lock()  # the limit is that of the process
_gpu_search = Lock()
"""Held by the one thread that may search on FAISS's GPUs."""


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
        self.factory = factory
        self.parameters = ""
        try:
            inner = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise InputError(
                f"factory={factory}: FAISS can't make an index of {dimension} dimensions by it; {EXACT} would do"
            ) from error
        _check_metric(inner, factory)
        self._index: Any = inner if find_lists(inner) is not None else faiss.IndexIDMap2(inner)
        self._is_mapped = False

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
            trial._train(vectors)
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
        return keeps_products(self._index)

    @property
    def scores_are_precise(self) -> bool:
        """Whether scores are the inner products of the vectors to 0.01: see `dml.retrieval.vector_index`."""
        return keeps_products(self._index) and keeps_numbers(self._index)

    def set_parameters(self, parameters: str) -> None:
        """Set the search parameters of an approximate index, such as "nprobe=32"; "" leaves FAISS's own."""
        if parameters:
            try:
                space: Any = faiss.ParameterSpace()
                space.set_index_parameters(self._index, parameters)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"parameters={parameters}: an index {self.factory} has no such search parameter"
                ) from error
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

    def train(self, vectors: Floats) -> None:
        """Find the cells or codes of an approximate index from vectors (N, D); an exact index needs none."""
        if recommended := self._train(vectors):
            logger.warning(
                "factory=%s: it is trained with %s vectors, and FAISS asks for %s; it may miss more neighbors",
                self.factory,
                f"{len(vectors):,}",
                f"{recommended:,}",
            )

    def _train(self, vectors: Floats) -> int:
        """Train -> the number of vectors that FAISS recommends for the training; 0 if there are as many."""
        try:
            return train_index(self._index, _contiguous(vectors), self.parameters)
        except RuntimeError as error:
            raise InputError(
                f"factory={self.factory}: {len(vectors)} vectors can't train it ({_reason(error)})"
            ) from error

    def add(self, vectors: Floats, ids: Integers) -> None:
        """Add vectors (N, D) with ids (N,), which the index must not hold yet."""
        try:
            self._index.add_with_ids(_contiguous(vectors), np.ascontiguousarray(ids, np.int64))
        except RuntimeError as error:
            raise InputError(
                f"factory={self.factory}: FAISS can't add vectors to such an index ({_reason(error)}); {EXACT} would do"
            ) from error
        self._forget_copy()

    def reconstruct(self, ids: Integers) -> Floats:
        """Return the vectors with these ids (N,) -> (N, D), as exactly as the index keeps them."""
        index, library = self._index, faiss  # type: Any, Any
        refusal = InputError(
            f"factory={self.factory}: FAISS can't give back the vectors of such an index; build it again"
        )
        if isinstance(find_core(index), faiss.IndexIVFFastScan):
            raise refusal  # FAISS would read memory that isn't there
        try:
            if find_lists(index) is not None:
                index = faiss.deserialize_index(faiss.serialize_index(index))  # the map from ids to places is a change
                find_lists(index).set_direct_map_type(library.DirectMap.Hashtable)
            vectors: Floats = index.reconstruct_batch(np.ascontiguousarray(ids, np.int64))
        except RuntimeError as error:
            raise refusal from error
        return vectors

    def check_removal(self) -> None:
        """Make sure that vectors can be removed."""
        self.remove(np.empty(0, np.int64))

    def remove(self, ids: Integers) -> int:
        """Remove the vectors with these ids (N,), and return how many there were."""
        if isinstance(self._index, faiss.IndexIDMap) and find_lists(self._index.index) is not None:
            raise InputError(
                f"factory={self.factory}: a version of dml that gave wrong answers after a removal built this index; "
                "build it again"
            )
        refusal = InputError(
            f"factory={self.factory}: an index of this kind can't remove or replace vectors; build it again"
        )
        if isinstance(find_core(self._index), faiss.IndexFastScan | faiss.IndexIVFFastScan):
            raise refusal  # after a removal and an addition, FAISS finds wrong vectors
        try:
            removed = int(self._index.remove_ids(np.ascontiguousarray(ids, np.int64)))
        except RuntimeError as error:
            raise refusal from error
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
        try:
            with multiplying_few_queries(self.dimension):
                blocks = [
                    self._search_block(_contiguous(queries[start : start + QUERIES_PER_BLOCK]), k)
                    for start in range(0, len(queries), QUERIES_PER_BLOCK)
                ]
        except RuntimeError as error:
            parameters = f", parameters={self.parameters}" if self.parameters else ""
            raise InputError(
                f"factory={self.factory}{parameters}: FAISS can't search such an index ({_reason(error)}); build it "
                f"with others, {EXACT} would do"
            ) from error
        if not blocks:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return np.concatenate([scores for scores, _ in blocks]), np.concatenate([ids for _, ids in blocks])

    def _search_block(self, queries: Floats, k: int) -> Any:
        with _gpu_search:
            if k <= LARGEST_K and self._gpu_copy is not None:
                return self._gpu_copy.search(queries, k)
        return self._index.search(queries, k)

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
                set_limit(DEFAULT_LIMIT)
        _check_metric(index, factory)
        opened = cls.__new__(cls)
        opened.factory, opened.parameters, opened._index, opened._is_mapped = factory, "", index, True
        return opened

    def copy(self) -> "VectorIndex":
        """Return a copy in memory."""
        copied = copy.copy(self)
        copied._forget_copy()
        copied._is_mapped = True
        copied.make_changeable()
        return copied

    def make_changeable(self) -> None:
        """Read an index that stays on the disk into memory, so that it can be changed."""
        if self._is_mapped:
            self._index, self._is_mapped = faiss.deserialize_index(faiss.serialize_index(self._index)), False
            self.set_parameters(self.parameters)  # FAISS's files don't hold all of them


def _check_metric(index: Any, factory: str) -> None:
    """Refuse an index that compares by distance although FAISS was asked for inner products, such as HNSW32,PQ16."""
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise InputError(
            f"factory={factory}: FAISS searches such an index by distance, not by inner product; {EXACT} would do"
        )


def _reason(error: RuntimeError) -> str:
    """Return the message of an error of FAISS, without the C++ function and line number in front of it."""
    return " ".join(re.split(r":\d+: (?:Error: )?", str(error))[-1].split())


def _contiguous(vectors: Floats) -> Floats:
    return np.ascontiguousarray(vectors, np.float32)


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


def keeps_products(index: Any) -> bool:
    """Return whether the transforms of vectors by an index keep the inner products: rotations alone do."""
    index = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if not isinstance(index, faiss.IndexPreTransform):
        return True
    chain: Any = index.chain
    transforms = [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]
    return all(
        (
            isinstance(transform, faiss.RandomRotationMatrix | faiss.OPQMatrix)
            # a file has a trained matrix as a linear transform
            or (type(transform) is faiss.LinearTransform and transform.is_orthonormal and not transform.have_bias)
        )
        and transform.d_in == transform.d_out
        for transform in transforms
    )


def keeps_numbers(index: Any) -> bool:
    """Return whether an index computes its scores from numbers of at least 8 bits, see `PRECISE_NUMBERS`."""
    core = find_core(index)
    if isinstance(core, faiss.IndexRefine):
        return keeps_numbers(core.refine_index)
    if isinstance(core, faiss.IndexHNSW | faiss.IndexNSG):
        graph: Any = core  # the type stubs of FAISS lack the storage of some
        return keeps_numbers(graph.storage)
    if isinstance(core, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer):
        return core.sq.qtype in PRECISE_NUMBERS
    return isinstance(core, faiss.IndexFlat | faiss.IndexIVFFlat)


FEW_VECTORS = re.compile(rb"WARNING clustering \d+ points to \d+ centroids: please provide at least (\d+).*\n")
STDERR = 2


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
