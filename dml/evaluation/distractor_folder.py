"""A folder of distractors: files of embeddings that processes share, and whose counts outlive a killed one."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist

from dml.retrieval.rows import Embeddings
from dml.runtime.checksums import DamageError, check_zip
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.text import printable

Integers = npt.NDArray[np.int64]
Count = Callable[[Iterable[Embeddings], str], Integers]

BLOCK_BYTES = 2**26
"""Bytes of a file in float32 that are read at a time."""


class DistractorFolder:
    """Distractors in .npy files (N, D) of float32 or float16, and in Parquet files of ``dml embed``, by name.

    Several processes that work together count every n-th file each, and add their counts up.

    Args:
        path: folder of the files, or one file.
        state: folder of the counts of each file, with which the evaluation goes on after it was killed; None for none.

    Raises:
        InputError: if there is no such file, or one can't be read.
    """

    def __init__(self, path: Path, state: Path | None = None) -> None:
        self.state, self._shards = state, list[_Shard]()
        for file in list_embedding_files(path):
            with _naming(file):
                self._shards.append(OPENERS[file.suffix](file))
        if not self._shards:
            raise InputError(
                f"{printable(path)}: no .npy or .parquet file of embeddings; dml embed makes one of images"
            )

    def __len__(self) -> int:
        return sum(shard.length for shard in self._shards)

    def check(self, fingerprint: str) -> bool:
        """Make sure that no file is of another model, by its fingerprint -> whether every file has a fingerprint."""
        for shard in self._shards:
            if shard.fingerprint not in ("", fingerprint):
                origin = f"of the model {printable(shard.fingerprint)}, expected the tested one, {fingerprint}"
                raise InputError(f"{printable(shard.file)}: {origin}")
        return all(shard.fingerprint for shard in self._shards)

    def count_files(self, count: Count, identity: bytes) -> Integers:
        """Return the sum of ``count(blocks, name)`` over all files and processes; ``identity`` tells it from others."""
        is_joined = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if is_joined else (0, 1)
        total, shards = count([], ""), self._shards[rank::world]
        with progress_bar("compared", len(self)) if self.state and not rank else nullcontext(lambda _: None) as advance:
            for shard in shards:
                total += self._count_file(shard, count, identity)
                advance(shard.length * world)
        if world > 1:
            parts: list[Any] = [None] * world
            dist.all_gather_object(parts, total)
            total = np.sum(parts, axis=0)
        return total

    def _count_file(self, shard: "_Shard", count: Count, identity: bytes) -> Integers:
        if self.state is None:
            return count(shard.read_all(), printable(shard.file))
        facts = shard.file.stat()
        version = f"{shard.file.name} {facts.st_size} {facts.st_mtime_ns}".encode()
        stored = self.state / f"{sha256(identity + version).hexdigest()[:32]}.npz"
        with suppress(FileNotFoundError, DamageError):  # the file is counted, or counted again
            check_zip(stored)
            return cast("Integers", np.load(stored)["counts"])
        counts = count(shard.read_all(), printable(shard.file))
        self.state.mkdir(parents=True, exist_ok=True)
        with replacing(stored) as partial, partial.open("wb") as opened:
            np.savez(opened, counts=counts)
        return counts


class _Shard(NamedTuple):
    """A file of embeddings, their number, the fingerprint of their model or "", and a function that reads blocks."""

    file: Path
    length: int
    fingerprint: str
    read: Callable[[], Iterator[Embeddings]]

    def read_all(self) -> Iterator[Embeddings]:
        """Read all blocks; an `InputError` tells that it isn't all of the file that was opened."""
        length = 0
        with _naming(self.file):
            for block in self.read():
                length += len(block)
                yield block
            if length != self.length:
                raise ValueError(f"{length:,} of {self.length:,}; the others are null, or the file changed meanwhile")


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, EOFError, KeyError, pa.ArrowException) as error:
        raise InputError(f"{printable(file)}: no embeddings can be read: {printable(error)}") from error


def _open_array(file: Path) -> _Shard:
    array: np.memmap[Any, Any] = np.load(file, mmap_mode="r")
    is_table = array.ndim == 2 and array.shape[1] > 0 and array.flags.c_contiguous
    if not is_table or array.dtype not in (np.float32, np.float16):
        raise ValueError(f"{array.dtype} {array.shape}, expected float32 or float16 (N, D), row by row")

    def read() -> Iterator[Embeddings]:
        size = max(BLOCK_BYTES // (4 * array.shape[1]), 1)
        for start in range(0, len(array), size):  # each block is a map of its own, whose pages are freed with it
            yield np.load(file, mmap_mode="r")[start : start + size]

    return _Shard(file, len(array), "", read)


def _open_parquet(file: Path) -> _Shard:
    opened = pq.ParquetFile(file)
    kind, facts = opened.schema_arrow.field("vector").type, opened.schema_arrow.metadata or {}
    if not pa.types.is_fixed_size_list(kind) or not kind.list_size:
        raise ValueError(f"vector is {kind}, expected a list of fixed size, as of dml embed")

    def read() -> Iterator[Embeddings]:
        size = max(BLOCK_BYTES // (4 * kind.list_size), 1)
        for batch in pq.ParquetFile(file, page_checksum_verification=True).iter_batches(size, columns=["vector"]):
            yield batch.column(0).flatten().to_numpy().reshape(-1, kind.list_size)

    return _Shard(file, opened.metadata.num_rows, facts.get(b"fingerprint", b"").decode(), read)


OPENERS = {".npy": _open_array, ".parquet": _open_parquet}


def list_embedding_files(path: Path) -> list[Path]:
    """List the files of embeddings in a folder by name, or of a file itself, if it is one by its name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if file.suffix in OPENERS and not file.name.startswith(".")]
