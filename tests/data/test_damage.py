"""Damage to what was prepared: the same images and contents are read, or one line says what to do, and preparing again
gives the same bytes.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from dml.data import contents
from dml.data.contents import read_stamps
from dml.data.images import ImageFile
from dml.data.overview import assign_content_ids
from dml.data.prepared import cache
from dml.data.prepared.cache import CacheFolder, ImageCache
from dml.data.prepared.cache_build import build_cache
from dml.data.prepared.verification import check_images, write_table
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.runtime.errors import InputError

RESIZE = Resize("warp", 16)
FLIPS = 20


def nothing(*_: Any) -> None:
    pass


class DataSet(NamedTuple):
    table: ImageTable
    folder: CacheFolder

    def prepare(self, **settings: Any) -> list[str]:
        """Writes the files -> the warnings."""
        warnings: list[str] = []
        settings |= {"processes": 1, "advance": nothing, "warn": warnings.append}
        images = check_images(self.table, self.folder, **settings)
        write_table(self.folder, self.table, images)
        build_cache(self.folder, RESIZE, images, **settings)
        assign_content_ids(self.table, self.folder)
        return warnings

    def cache(self) -> ImageCache:
        found = self.folder.find(self.table, RESIZE)
        assert found is not None
        return found

    def read_table(self) -> Any:
        return pq.read_table(self.folder.path / "table.parquet").to_pylist()

    def pixels(self) -> list[Any]:
        return [self.cache().pixels(row) for row in range(len(self.table))]

    def file(self, ending: str) -> Path:
        (path,) = self.folder.path.glob(f"*{ending}")
        return path

    def leave_unfinished(self) -> None:
        """Leaves what a verification leaves that was killed before it wrote the table."""
        (self.folder.path / "table.parquet").unlink(missing_ok=True)
        check_images(self.table, self.folder, processes=1, advance=nothing)


@pytest.fixture
def images(tmp_path: Path) -> DataSet:
    """Six images of noise, one broken; a query and a gallery image are the same."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    shutil.copy(paths[2], paths[4])
    paths[1].write_bytes(paths[1].read_bytes()[:700])
    split = np.array(["train", "train", "query", "query", "gallery", "gallery"])
    labels = np.zeros((6, 1), dtype=np.int64)
    folder = CacheFolder.from_setting("auto", str(tmp_path), "folder")
    folder.path.mkdir(parents=True)
    return DataSet(ImageTable(np.array([*map(str, paths)]), labels, split, ("class",)), folder)


def flip(seed: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        content, rng = bytearray(path.read_bytes()), random.Random(seed)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    return flip


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE = [*map(flip, range(FLIPS)), *map(cut, (0, 0.1, 0.5, 0.9, 0.99)), zero]
FILES = (".pixels", ".json", "table.parquet", "verified.parquet")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.data_sets
def test_damage_is_told_or_harmless_and_is_repaired(images: DataSet, name: str) -> None:
    assert images.prepare() == []
    table, pixels, content = (
        images.read_table(),
        images.pixels(),
        assign_content_ids(images.table, images.folder).content,
    )
    assert content[2] == content[4] != content[3]
    refused = 0
    for damage in DAMAGE:
        if name == "verified.parquet":
            images.leave_unfinished()
        damage(images.file(name))
        assert np.array_equal(
            assign_content_ids(images.table, images.folder).content == content[2], content == content[2]
        )
        try:
            for read, right in zip(images.pixels(), pixels, strict=True):
                assert read is right is None or torch.equal(read, right)
        except InputError as error:
            refused += 1
            line = str(error)
            assert "\n" not in line
            assert f"run dml prepare dataset=folder dataset.root={images.folder.root} resize=16 mode=war" in line
        images.prepare()
        assert images.read_table() == table
        for read, right in zip(images.pixels(), pixels, strict=True):
            assert read is right is None or torch.equal(read, right)
    assert refused == (len(DAMAGE) if name in (".pixels", ".json") else 0)


def test_damage_that_no_stamp_tells_of_is_found_by_comparing_contents(
    images: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a disk that reads other bits than were written."""
    images.prepare()
    path, pixels = images.file(".pixels"), images.pixels()
    stamp = read_stamps([str(path)])
    zero(path)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "read_stamps", lambda paths: stamp if [*paths] == [str(path)] else read_stamps(paths))
        assert images.prepare() == []
        (warning,) = images.prepare(compare_contents=True)
        assert str(path.with_suffix(".json")) in warning
    assert torch.equal(images.pixels()[0], pixels[0])


# files that are made anew while they are read


def test_a_cache_that_is_made_anew_after_its_index_was_read_is_not_mixed_up(
    images: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.prepare()
    original = cache.PixelFile

    def open_later(path: Path) -> Any:
        monkeypatch.undo()
        Image.new("RGB", (30, 20), "red").save(images.table.paths[0])
        for row in (2, 3, 5):
            shutil.copy(images.table.paths[0], images.table.paths[row])
        images.prepare()
        return original(path)

    monkeypatch.setattr(cache, "PixelFile", open_later)
    with pytest.raises(InputError, match=r"No such file .*\.pixels'; run dml prepare"):
        images.pixels()
    assert torch.equal(images.pixels()[0], RESIZE(ImageFile(str(images.table.paths[0]))))


# contents


def test_another_content_of_the_same_size_and_time_is_seen(images: DataSet) -> None:
    images.prepare()
    before = images.pixels()
    first, other = (Path(images.table.paths[row]) for row in (0, 3))
    state = first.stat()
    first.write_bytes(other.read_bytes().ljust(state.st_size, b"\0")[: state.st_size])
    os.utime(first, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(InputError, match=f"1 images are new or have changed since, such as {first}"):
        images.cache()
    (warning,) = images.prepare()
    assert warning == f"1 images have another content, of the same size and time, such as {first}"
    assert torch.equal(images.pixels()[0], before[3])
    assert images.prepare() == images.prepare(compare_contents=True) == []


def test_copies_with_their_times_are_not_decoded_again_and_their_stamps_are_renewed(
    images: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.prepare()
    before, stored = images.pixels(), read_stamps([str(images.file(".pixels"))]).tolist()
    for path in map(Path, images.table.paths[[pixels is not None for pixels in before]]):
        shutil.copy2(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").replace(path)
    images.cache()
    assert images.prepare() == []
    assert read_stamps([str(images.file(".pixels"))]).tolist() == stored
    monkeypatch.setattr(contents, "hash_content", None)  # nothing is read any more
    for pixels, earlier in zip(images.pixels(), before, strict=True):
        assert pixels is earlier or torch.equal(pixels, earlier)


def test_unchanged_contents_are_read_and_not_decoded(images: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    images.prepare()
    stored = read_stamps([str(images.file(".pixels"))]).tolist()
    monkeypatch.setattr("dml.data.prepared.verification.ImageFile", None)
    part = images._replace(table=images.table.take(np.array([0, 2, 3, 4, 5])))
    check_images(part.table, part.folder, processes=1, advance=nothing, compare_contents=True)
    monkeypatch.undo()
    images.prepare(compare_contents=True)
    assert read_stamps([str(images.file(".pixels"))]).tolist() == stored
