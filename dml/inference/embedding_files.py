"""Files of embedded images, and the folder of parts that an upgrade goes on with."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dml.data.image_files.contents import read_sizes, read_stamps
from dml.data.prepared.prepared_files import UnfitFileError, read_parquet, write_parquet
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import check_readable
from dml.retrieval.rows import stack_rows
from dml.runtime.checksums import DamageError
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.locks import busy_error, holding, is_held
from dml.runtime.paths import absolute_path, expand_home
from dml.runtime.run_files import read_values, write_values
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

SUFFIXES = (".parquet", ".npz")

CHUNK = 4096
"""The number of images from which on their vectors are written."""


def check_output(file: Path) -> None:
    """Check the name of a file of embedded images."""
    if file.suffix not in SUFFIXES:
        raise InputError(f"--output {printable(file)}: the name must end with {' or '.join(SUFFIXES)}")


def make_table(
    paths: Sequence[str], labels: Sequence[str], vectors: NDArray[np.float32], facts: Mapping[str, str]
) -> pa.Table:
    """Make a table with the columns path, label and vector of the images that could be read.

    Args:
        paths: (N,) paths of the images.
        labels: (N,) names of their classes; empty strings where none is known.
        vectors: (N, D) vectors; a row of NaN is an image that could not be read.
        facts: metadata of the table, such as the model's fingerprint.
    """
    rows = np.flatnonzero(~np.isnan(vectors[:, 0])).tolist()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[rows].reshape(-1)), vectors.shape[1])
    columns = {
        "path": pa.array([paths[row] for row in rows], pa.string()),
        "label": pa.array([labels[row] for row in rows], pa.string()),
        "vector": column,
    }
    return pa.table(columns).replace_schema_metadata(dict(facts))


def make_tables(
    names: Sequence[str], labels: Sequence[str], blocks: Iterable[NDArray[np.float32]]
) -> Iterator[pa.Table]:
    """Make tables of some thousand images each while they are embedded; see `make_table`.

    Args:
        names: (N,) paths to write.
        labels: (N,) names of the classes.
        blocks: vectors (n, D), in the order of the images.
    """
    first, waiting = 0, list[NDArray[np.float32]]()
    with progress_bar("embedded", len(names)) as advance:
        for block in blocks:
            waiting.append(block)
            advance(len(block))
            end = first + sum(map(len, waiting))
            if end - first >= CHUNK or end == len(names):
                yield make_table(names[first:end], labels[first:end], np.concatenate(waiting), {})
                first, waiting = end, []


def write_embeddings(file: Path, tables: Iterable[pa.Table], facts: Mapping[str, str], images: int) -> None:
    """Write tables that `make_table` made to one file.

    Args:
        file: file to write. A .parquet file has the columns path, label and vector, and the facts in its metadata;
            one table is in memory at a time. A .npz file has the arrays paths, labels and vectors, and one for each
            fact.
        tables: tables of the images, in their order.
        facts: facts such as the model's fingerprint.
        images: number of all images, those that could not be read among them.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npz":
        joined_table = pa.concat_tables(table.replace_schema_metadata(None) for table in tables)
        check_readable(len(joined_table), images)
        with replacing(file) as partial, partial.open("wb") as opened:
            np.savez(
                opened, allow_pickle=False, **as_arrays(joined_table), **{key: np.array(facts[key]) for key in facts}
            )
        return
    described = (table.replace_schema_metadata(dict(facts)) for table in tables)
    first = next(described)
    readable = 0
    with replacing(file) as partial:
        with pq.ParquetWriter(partial, first.schema, write_page_checksum=True) as writer:
            for table in chain([first], described):
                writer.write_table(table)
                readable += len(table)
        check_readable(readable, images)


def as_arrays(table: pa.Table) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a table as arrays: paths (N,) and labels (N,) of strings, vectors (N, D) float32."""
    return {
        "paths": np.array(table.column("path").to_pylist(), dtype=np.str_),
        "labels": np.array(table.column("label").to_pylist(), dtype=np.str_),
        "vectors": stack_rows(table.column("vector")),
    }


@dataclass(frozen=True)
class Shard:
    """One of several shares of a job, which are numbered from 1.

    >>> Shard.parse("2/3").choose(8)
    range(1, 8, 3)

    Args:
        number: number of this share, from 1 to ``count``.
        count: number of the shares.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read a shard such as "2/4"."""
        number, _, count = text.partition("/")
        is_shard = all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, count))
        if not is_shard or not 1 <= int(number) <= int(count):
            raise InputError(f"--shard {text}: expected I/N with I from 1 to N, such as 2/4 for the second of four")
        return cls(int(number), int(count))

    def choose(self, pieces: int) -> range:
        """Return the pieces of this share, of so many that are numbered from 0: every n-th."""
        return range(self.number - 1, pieces, self.count)


WHOLE = Shard()
"""The whole job as one shard."""


PART_SIZE = 1024
"""The smallest number of images in a part; a part is a whole number of batches."""

PLAN = "plan.json"

MEANINGS = {
    "format": "version of the files",
    "fingerprint": "model",
    "root": "root",
    "images": "number of images",
    "listing": "list of images (their paths and labels)",
    "batch_size": "batch size",
}
"""What the keys of a plan stand for, in the order in which a difference is told."""


class EmbeddingParts:
    """The parts of a file of embedded images, in a folder beside it.

    Part p has the images from p * ``part_size`` on. A part begins where a batch begins, so that the vectors are the
    same, bit for bit, however often the work was interrupted, and for each machine of one kind that shares it.

    A part whose images have changed since is deleted when the work goes on: it holds their sizes, and an image that was
    written after it has changed too. The times of images aren't compared otherwise, since machines that share the work
    may have their own copies of the images.

    Args:
        output: file to write in the end, .parquet or .npz. The folder of the parts has its name and ``.parts``.
        paths: (N,) paths of the images.
        labels: (N,) names of their classes; empty strings where none is known.
        facts: the model's fingerprint; and a "root" that the written paths are relative to, if any.
        batch_size: number of images in the network at a time.

    Raises:
        InputError: if the output has another suffix, or a path or label can't be written.
    """

    def __init__(
        self, output: Path, paths: Sequence[str], labels: Sequence[str], facts: Mapping[str, str], batch_size: int
    ) -> None:
        check_output(output)
        names = name_images(paths, facts.get("root"))
        check_names(names, labels)
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")
        self.paths = paths
        self.names = names
        self.labels = labels
        self.facts = dict(facts)
        self.part_size = -(-PART_SIZE // batch_size) * batch_size
        self._plan = {
            "format": 3,
            **self.facts,
            "images": len(paths),
            "listing": _hash_listing(names, labels),
            "batch_size": batch_size,
            "part_size": self.part_size,
        }
        self._plan_hash = sha256(json.dumps(self._plan, sort_keys=True).encode()).hexdigest()

    def __len__(self) -> int:
        """Return the number of parts."""
        return -(-len(self.paths) // self.part_size)

    @contextmanager
    def hold(self, shard: Shard) -> Iterator[None]:
        """Make the folder, or go on with it, and keep other processes from the same shard in the ``with`` statement.

        Raises:
            InputError: if the folder has parts of other images or of another model, or another process is at work.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with holding(self._lock_path(shard), name=printable(self.folder)):
            self._refuse_busy_shards(shard)
            self._check_plan()
            self._delete_outdated(shard)
            yield

    def _refuse_busy_shards(self, shard: Shard) -> None:
        """Raise an error if a process is at work on a shard that has parts of this one: the whole job has all."""
        lock_of_shard, lock_of_all = self._lock_path(shard), self._lock_path(WHOLE)
        for path in self.folder.glob(".lock-*") if shard == WHOLE else [lock_of_all]:
            if path != lock_of_shard and is_held(path):
                raise busy_error(path, printable(self.folder))

    def missing(self, shard: Shard) -> list[int]:
        """Return the parts of a shard that aren't there."""
        return [part for part in shard.choose(len(self)) if not self._file(part).is_file()]

    def rows(self, part: int) -> range:
        """Return the positions of a part's images."""
        return range(part * self.part_size, min((part + 1) * self.part_size, len(self.paths)))

    def write(self, part: int, vectors: NDArray[np.float32]) -> None:
        """Write the vectors (n, D) of a part's images; a row of NaN is an image that could not be read."""
        rows = self.rows(part)
        names = [self.names[row] for row in rows], [self.labels[row] for row in rows]
        facts = {**self.facts, "plan": self._plan_hash, "part": str(part), "sizes": self._hash_sizes(part)}
        table = make_table(*names, vectors, facts)
        write_parquet(self._file(part), table)

    def read_all(self, may_lack_images: bool) -> Iterator[pa.Table]:
        """Read the tables of all parts, in their order.

        Args:
            may_lack_images: whether images that could not be read may be missing; an earlier call may have left them
                out.

        Raises:
            InputError: if a part is damaged or of other images, or an image is missing.
        """
        for part in range(len(self)):
            table = self._read(part)
            lacking = len(self.rows(part)) - len(table)
            if lacking and not may_lack_images:
                raise InputError(
                    f"{printable(self._file(part))}: an earlier command with --on-corrupt skip left out "
                    f"{format_count(lacking, 'image')}; give --on-corrupt skip again, or delete this file, and the "
                    "same command goes on"
                )
            yield table

    def _read(self, part: int) -> pa.Table:
        file = self._file(part)
        try:
            table = read_parquet(file)
        except UnfitFileError as error:
            raise InputError(f"{error}; delete it, and the same command goes on") from error
        metadata = table.schema.metadata or {}
        if (metadata.get(b"plan"), metadata.get(b"part")) != (self._plan_hash.encode(), str(part).encode()):
            raise InputError(f"{printable(file)}: of other images; delete it, and the same command goes on")
        return table

    def _delete_outdated(self, shard: Shard) -> None:
        """Delete the parts of a shard whose images have other sizes now, or were written after the part."""
        outdated = [part for part in shard.choose(len(self)) if self._is_outdated(part)]
        for part in outdated:
            self._file(part).unlink()
        if outdated:
            count = format_count(len(outdated), "part")
            logger.warning("%s: images have changed since; %s embedded again", printable(self.folder), count)

    def _is_outdated(self, part: int) -> bool:
        file = self._file(part)
        try:
            written, sizes = file.stat().st_mtime_ns, (pq.read_metadata(file).metadata or {}).get(b"sizes")
        except (pa.ArrowException, OSError):
            return False  # it isn't there, or damaged, which `join` tells
        images = [self.paths[row] for row in self.rows(part)]
        return bool((read_stamps(images)[:, 1] >= written).any()) or sizes != self._hash_sizes(part).encode()

    def _hash_sizes(self, part: int) -> str:
        sizes = read_sizes([self.paths[row] for row in self.rows(part)])
        return sha256(json.dumps(sizes).encode()).hexdigest()

    def _lock_path(self, shard: Shard) -> Path:
        return self.folder / f".lock-{shard.number}-of-{shard.count}"

    def _file(self, part: int) -> Path:
        return self.folder / f"{part:06}.parquet"

    def _check_plan(self) -> None:
        file = self.folder / PLAN
        if not file.is_file():
            if stray := next((path.name for path in self.folder.iterdir() if not path.name.startswith(".")), None):
                raise InputError(f"{printable(self.folder)}: holds something else ({printable(stray)}); delete it")
        elif self._read_plan(file) == self._plan:
            return
        write_values(file, self._plan, {})

    def _read_plan(self, file: Path) -> dict[str, Any]:
        """Read the plan with which the folder was begun; one that differs is an error if there are parts."""
        try:
            begun, _ = read_values(file)
        except DamageError as error:
            raise InputError(f"{printable(file)}: damaged; delete the folder to begin again") from error
        if begun != self._plan and any(self.folder.glob("*.parquet")):
            key = next((key for key in MEANINGS if begun.get(key) != self._plan[key]), "format")
            raise InputError(
                f"{printable(self.folder)}: begun with another {MEANINGS[key]} ({printable(begun.get(key))}, now "
                f"{self._plan[key]}); repeat the command as it was, or delete the folder to begin again"
            )
        return begun


def name_images(paths: Sequence[str], root: str | Path | None) -> list[str]:
    """Return the paths to store: absolute, or relative to a folder, with forward slashes.

    Raises:
        InputError: if an image isn't in the folder.
    """
    names = [*map(absolute_path, paths)]
    if root is not None:
        folder = absolute_path(expand_home(root))
        names = [Path(os.path.relpath(name, folder)).as_posix() for name in names]
        if outside := next((path for path, name in zip(paths, names, strict=True) if name.split("/")[0] == ".."), None):
            raise InputError(f"--root {printable(root)}: {printable(outside)} isn't in this folder")
    return names


def check_names(paths: Sequence[str], labels: Sequence[str]) -> None:
    """Check that paths and labels can be written as UTF-8, before hours of work."""
    for name in (*paths, *labels):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{printable(name)}: a name that isn't UTF-8 can't be stored; rename it") from error


def _hash_listing(paths: Sequence[str], labels: Sequence[str]) -> str:
    digest = sha256()
    for path, label in zip(paths, labels, strict=True):
        digest.update(json.dumps([path, label]).encode())
    return digest.hexdigest()


def embed_parts(model: ImageEmbedder, parts: EmbeddingParts, missing: list[int], options: dict[str, Any]) -> None:
    """Embed the images of parts, and write each part as soon as it is complete.

    One loader reads the images of all parts, so that its processes start once. A part begins where a batch begins.
    """
    paths = [parts.paths[row] for part in missing for row in parts.rows(part)]
    waiting: list[NDArray[np.float32]] = []
    due = iter(missing)
    part = next(due, None)
    with progress_bar("embedded", len(paths)) as advance:
        for positions, vectors in model.embed_in_batches(paths, **options):
            waiting.append(vectors)
            if part is not None and sum(map(len, waiting)) == len(parts.rows(part)):
                parts.write(part, np.concatenate(waiting))
                waiting, part = [], next(due, None)
            advance(len(positions))
