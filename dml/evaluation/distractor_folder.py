"""A folder of distractors: files of embeddings that processes share, and whose counts outlive a killed one."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

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

SUFFIXES = (".npy", ".parquet")

BLOCK_BYTES = 2**26
"""Bytes of a file that are read at a time."""

FINGERPRINT_FILE = "fingerprint.txt"
"""The file beside .npy files that holds the fingerprint of the model that made them, if it is known."""


class DistractorFolder:
    """Distractors in .npy files (N, D) of float32 or float16, and in Parquet files of ``dml embed``, by name.

    Several processes that work together count every n-th file each, and add their counts up.

    Args:
        path: folder of the files, or one file.
        state: folder in which the counts of each file are kept until `forget`, so that the same evaluation goes on
            after the process was killed; None keeps none.

    Raises:
        InputError: if there is no such file, or one can't be read.
    """

    def __init__(self, path: Path, state: Path | None = None) -> None:
        self.path, self.state = path, state
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        self.files = [file for file in files if file.suffix in SUFFIXES and file.is_file() and file.name[0] != "."]
        if not self.files:
            raise InputError(
                f"{printable(path)}: no .npy or .parquet file of embeddings; of images, "
                f"dml embed MODEL FOLDER --output {printable(path.with_suffix('.parquet').name)} makes one"
            )
        self._shards = [_Shard(file) for file in self.files]
        self._written = set[Path]()

    def __len__(self) -> int:
        """Return the number of embeddings."""
        return sum(shard.length for shard in self._shards)

    def check(self, dimension: int, fingerprint: str) -> bool:
        """Make sure that the embeddings may be of a model -> whether every file names the model.

        Raises:
            InputError: if the size or the fingerprint of a file is another one.
        """
        names_model = True
        for shard in self._shards:
            if shard.dimension != dimension:
                raise InputError(f"{printable(shard.file)}: {shard.dimension} dimensions, the model has {dimension}")
            if shard.fingerprint not in (None, fingerprint):
                raise InputError(
                    f"{printable(shard.file)}: of the model {printable(shard.fingerprint)}, not of {fingerprint}; "
                    "embed the distractors with the tested model"
                )
            names_model &= shard.fingerprint is not None
        return names_model

    def count_shards(self, count: Callable[[Iterable[Embeddings], str], Integers], identity: bytes) -> Integers:
        """Return the sum of what ``count(blocks, name)`` counts in each file, over all files and processes.

        Args:
            count: function of the blocks of a file, and of a name for error lines.
            identity: hash of what is counted, which tells counts that were kept before from those of something else.
        """
        is_joined = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if is_joined else (0, 1)
        total = count([], "")  # a process may have no file
        shards = self._shards[rank::world]
        with progress_bar("compared", sum(shard.length for shard in shards)) as advance:
            for shard in shards:
                total += self._count_shard(shard, count, identity)
                advance(shard.length)
        if world > 1:
            parts: list[Any] = [None] * world
            dist.all_gather_object(parts, total)
            total = np.sum(parts, axis=0)
        return total

    def _count_shard(
        self, shard: "_Shard", count: Callable[[Iterable[Embeddings], str], Integers], identity: bytes
    ) -> Integers:
        if self.state is None:
            return count(shard.read(), printable(shard.file))
        path = self.state / f"{sha256(identity + shard.identity).hexdigest()[:32]}.npz"
        self._written.add(path)
        if path.is_file():
            try:
                check_zip(path)
                with np.load(path) as arrays:
                    kept: Integers = arrays["counts"]
                    return kept
            except DamageError:  # the file is counted again
                path.unlink()
        counts = count(shard.read(), printable(shard.file))
        self.state.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as opened:
            np.savez(opened, counts=counts)
        return counts

    def forget(self) -> None:
        """Delete the counts that were kept."""
        for path in self._written:
            path.unlink(missing_ok=True)


class _Shard:
    """A file of embeddings (length, dimension), and the fingerprint of their model if it is known.

    Raises:
        InputError: if the file holds no embeddings.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._naming_file():
            self.length, self.dimension, self.fingerprint = (
                self._describe_array() if file.suffix == ".npy" else self._describe_parquet()
            )

    @property
    def identity(self) -> bytes:
        """What tells the file from another one, or from a later version of it."""
        state = self.file.stat()
        return f"{self.file.name} {state.st_size} {state.st_mtime_ns}".encode()

    def read(self) -> Iterator[Embeddings]:
        """Read the embeddings, in blocks (n, D) of `BLOCK_BYTES` or less in float32."""
        size = max(BLOCK_BYTES // (4 * self.dimension), 1)
        with self._naming_file():
            if self.file.suffix == ".npy":
                array = self._map_array()
                for start in range(0, self.length, size):  # unlike pages of the map, a block is freed after its use
                    count, offset = min(size, self.length - start) * self.dimension, array.offset + array[:start].nbytes
                    yield np.fromfile(self.file, array.dtype, count, offset=offset).reshape(-1, self.dimension)
            else:
                file = pq.ParquetFile(self.file, page_checksum_verification=True)
                for batch in file.iter_batches(size, columns=["vector"]):
                    yield batch.column(0).flatten().to_numpy().reshape(-1, self.dimension)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError, EOFError, KeyError, pa.ArrowException) as error:
            raise InputError(f"{printable(self.file)}: can't be read as embeddings: {printable(error)}") from error

    def _map_array(self) -> "np.memmap[Any, Any]":
        array: np.memmap[Any, Any] = np.load(self.file, mmap_mode="r")
        if array.ndim != 2 or array.dtype not in (np.float32, np.float16) or not array.flags.c_contiguous:
            order = "" if array.flags.c_contiguous else ", column by column"
            raise ValueError(f"{array.dtype} {array.shape}{order}, expected float32 or float16 (N, D), row by row")
        return array

    def _describe_array(self) -> tuple[int, int, str | None]:
        beside = self.file.with_name(FINGERPRINT_FILE)
        return *self._map_array().shape, beside.read_text(encoding="utf-8").strip() if beside.is_file() else None

    def _describe_parquet(self) -> tuple[int, int, str | None]:
        file = pq.ParquetFile(self.file)
        kind, facts = file.schema_arrow.field("vector").type, file.schema_arrow.metadata or {}
        if not pa.types.is_fixed_size_list(kind) or kind.value_type not in (pa.float32(), pa.float16()):
            raise ValueError(f"vector is {kind}, expected a list of float32 or float16 of fixed size, as of dml embed")
        fingerprint = facts.get(b"fingerprint")
        return file.metadata.num_rows, kind.list_size, fingerprint.decode() if fingerprint else None
