import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import warnings
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torchvision.transforms import v2

from dml.data.dataset import ImageDataset, collate
from dml.data.images import ImageFile, ImageLimits
from dml.data.prepared import cache_build
from dml.data.prepared.cache import CacheFolder, hold_preparation_lock, refuse_links
from dml.data.prepared.cache_build import build_cache
from dml.data.prepared.verification import check_images
from dml.data.table import ImageTable
from dml.data.transforms import Pad, Pipeline, RandomResizedCrop, Resize
from dml.runtime.errors import InputError

PHOTO = Image.fromarray(load_sample_image("china.jpg"))
RESIZES = [Resize("warp", 32), Resize("shorter", 20), Resize("longer", 48)]


def encoded(width: int, height: int, kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    file = BytesIO()
    PHOTO.resize((width, height)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


IMAGES = {
    "plain.jpg": encoded(100, 75),
    "large.jpg": encoded(400, 300),
    "gray.jpg": encoded(61, 47, mode="L"),
    "cmyk.jpg": encoded(50, 80, mode="CMYK"),
    "rotated.jpg": encoded(90, 60, exif=rotated()),
    "palette.png": encoded(33, 44, "PNG", mode="P"),
    "alpha.png": encoded(40, 30, "PNG", mode="RGBA"),
    "flat.webp": encoded(200, 3, "WEBP"),
    "dot.png": encoded(1, 1, "PNG"),
}


class Prepared(NamedTuple):
    """A data set and the folder of its caches."""

    table: ImageTable
    folder: CacheFolder

    def build(self, resize: Resize, advance: Callable[[int], None] = lambda _: None, processes: int = 1) -> list[str]:
        """Build the cache and return the warnings."""
        checked = check_images(self.table, self.folder, processes=1, advance=lambda _: None)
        warnings: list[str] = []
        build_cache(self.folder, resize, checked, processes=processes, advance=advance, warn=warnings.append)
        return warnings


def prepared(root: Path) -> Prepared:
    paths = np.array([f"{root}/{name}" for name in IMAGES])
    labels = np.array([[i % 2] for i in range(len(paths))], dtype=np.int64)
    folder = CacheFolder.from_setting("auto", str(root), "set")
    folder.path.mkdir(parents=True, exist_ok=True)
    return Prepared(ImageTable(paths, labels, np.full(len(paths), "train"), ("class",)), folder)


@pytest.fixture
def images(tmp_path: Path) -> Prepared:
    root = tmp_path / "set"
    root.mkdir()
    for name, content in IMAGES.items():
        (root / name).write_bytes(content)
    return prepared(root)


# what it holds


def check_rows(images: Prepared, resize: Resize) -> None:
    """Builds the cache and holds it against the files."""
    images.build(resize)
    cache = images.folder.find(images.table, resize)
    assert cache is not None
    for row, path in enumerate(images.table.paths):
        pixels = cache.pixels(row)
        assert pixels is not None
        assert torch.equal(pixels, resize(ImageFile(path)))
        assert pixels.permute(1, 2, 0).is_contiguous()


def test_a_cache_of_another_background_is_refused_and_made_anew(images: Prepared) -> None:
    resize, black = Resize("warp", 32), ImageLimits(background="black")
    images.build(resize)
    with pytest.raises(InputError, match=r"another data\.background; run dml prepare .*data\.background=black"):
        images.folder.find(images.table, resize, black)
    checked = check_images(images.table, images.folder, processes=1, advance=lambda _: None)
    build_cache(images.folder, resize, checked, processes=1, advance=lambda _: None, limits=black)
    assert images.folder.find(images.table, resize, ImageLimits(background="#000000")) is not None
    with pytest.raises(InputError, match=r"another data\.background; run dml prepare .* resize=32"):
        images.folder.find(images.table, resize)


@pytest.mark.parametrize("resize", RESIZES, ids=lambda resize: resize.mode)
def test_it_holds_what_the_resize_makes_of_the_files(images: Prepared, resize: Resize) -> None:
    check_rows(images, resize)


def items(dataset: ImageDataset, seed: int) -> list[Any]:
    return [dataset[row, (seed, row)] for row in range(len(dataset))]


@pytest.mark.parametrize(
    "steps",
    [
        [Resize("warp", 32), RandomResizedCrop(28, (0.5, 1.0)), v2.RandomHorizontalFlip()],
        [Resize("warp", 32), v2.RandomCrop(28), v2.RandomHorizontalFlip()],
        [Resize("longer", 48), Pad(40), v2.RandomCrop(40)],
        [Resize("shorter", 20), RandomResizedCrop(16, (0.16, 1.0)), v2.ColorJitter(0.5)],
        [Resize("longer", 300)],
    ],
)
def test_training_sees_the_same_with_and_without_it(images: Prepared, steps: list[Any]) -> None:
    pipeline = Pipeline(steps)
    assert pipeline.resize is not None
    images.build(pipeline.resize)
    cache = images.folder.find(images.table, pipeline.resize)
    assert cache is not None
    files, cached = ImageDataset(images.table, pipeline), ImageDataset(images.table, pipeline, cache=cache)
    for seed in range(5):
        for one, other in zip(items(files, seed), items(cached, seed), strict=True):
            assert torch.equal(one[0], other[0])
            assert one[0].stride() == other[0].stride()
            assert (one[1].tolist(), one[2]) == (other[1].tolist(), other[2])


def test_it_is_read_instead_of_the_files(images: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    images.build(RESIZES[0])
    cached = ImageDataset(images.table, Pipeline(RESIZES[:1]), cache=images.folder.find(images.table, RESIZES[0]))
    monkeypatch.setattr("dml.data.dataset.ImageFile", None)
    assert collate(items(cached, 0))[0].shape == (len(IMAGES), 3, 32, 32)


def test_rows_are_found_by_their_paths(images: Prepared) -> None:
    images.build(RESIZES[1])
    some = images.table.take(np.array([4, 4, 1]))
    cache = images.folder.find(some, RESIZES[1])
    assert cache is not None
    for row, name in enumerate(["rotated.jpg", "rotated.jpg", "large.jpg"]):
        assert torch.equal(cache.pixels(row), RESIZES[1](ImageFile(f"{images.folder.root}/{name}")))  # type: ignore[arg-type]


def test_another_process_opens_the_file_itself(images: Prepared) -> None:
    images.build(RESIZES[0])
    cache = images.folder.find(images.table, RESIZES[0])
    assert cache is not None
    pixels = cache.pixels(1)
    sent = pickle.dumps(cache)
    assert len(sent) < 3000
    assert torch.equal(pickle.loads(sent).pixels(1), pixels)


def test_an_image_that_cannot_be_read_is_left_to_the_dataset(images: Prepared) -> None:
    broken = Path(images.table.paths[3])
    broken.write_text("damaged")
    images.build(RESIZES[0])
    cache = images.folder.find(images.table, RESIZES[0])
    assert cache is not None
    assert cache.pixels(3) is None
    raising, replacing, dropping = (
        ImageDataset(images.table, Pipeline(RESIZES[:1]), on_corrupt, cache)
        for on_corrupt in ("raise", "replace", "drop")
    )
    with pytest.raises(InputError, match=r"cmyk\.jpg: cannot be decoded"):
        raising[3]
    assert replacing[3][2] == 5  # type: ignore[index]
    assert dropping[3] is None


def test_a_strip_that_would_be_too_large_is_left_to_the_dataset(images: Prepared) -> None:
    Path(images.table.paths[3]).write_bytes(encoded(2, 5_000, "PNG"))
    resize, limits, lines = Resize("shorter", 32), ImageLimits(max_pixels=1_000_000), list[str]()
    checked = check_images(images.table, images.folder, processes=1, advance=lambda _: None)
    args: dict[str, Any] = {"processes": 1, "advance": lambda _: None, "warn": lines.append, "limits": limits}
    build_cache(images.folder, resize, checked, **args)
    assert [line.partition(": ")[2] for line in lines] == [
        "2 x 5,000 pixels would be scaled to 32 x 80,000, at most 1,000,000 pixels; data.max_pixels=2560000 scales it; "
        "not in the cache"
    ]
    cache = images.folder.find(images.table, resize)
    assert cache is not None
    assert cache.pixels(2) is not None
    assert cache.pixels(3) is None
    dataset = ImageDataset(images.table, Pipeline([resize]), "drop", cache, limits)
    assert dataset[3] is None


def test_members_of_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, content in IMAGES.items():
            archive.writestr(name, content)
    images = prepared(tmp_path / "set.zip")
    check_rows(images, RESIZES[0])
    os.utime(tmp_path / "set.zip", ns=(1, 1))
    with pytest.raises(InputError, match="9 images are new or have changed"):
        images.folder.find(images.table, RESIZES[0])


# when it fits


def test_there_is_none(images: Prepared) -> None:
    assert images.folder.find(images.table, None) is None
    assert images.folder.find(images.table, RESIZES[0]) is None
    images.build(RESIZES[0])
    assert images.folder.find(images.table, Resize("warp", 33)) is None
    assert images.folder.find(images.table, Resize("longer", 32)) is None
    assert CacheFolder(Path("/none"), None).find(images.table, RESIZES[0]) is None


def test_it_moves_with_the_data_set(images: Prepared, tmp_path: Path) -> None:
    images.build(RESIZES[0])
    root = Path(str(images.folder.root))
    shutil.copytree(root, tmp_path / "moved")
    shutil.rmtree(root)
    moved = prepared(tmp_path / "moved")
    assert moved.folder.find(moved.table, RESIZES[0]) is not None


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def file_of(images: Prepared, ending: str) -> Path:
    (path,) = images.folder.shard_paths(RESIZES[0], ending)
    return path


def with_format(images: Prepared, number: int) -> None:
    index = file_of(images, "json")
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": number}))


DAMAGED = r"warp-32\.\w+\.json: it, or its pixels, are damaged or of another version"
STALE: dict[str, tuple[Callable[[Prepared], Any], str]] = {
    "another file": (
        lambda images: Path(images.table.paths[2]).write_bytes(IMAGES["plain.jpg"]),
        r"set: 1 images are new or have changed since, such as .*/gray\.jpg; run dml prepare "
        r"dataset=set dataset\.root=\S+/set resize=32 mode=warp again, or give data\.cache=null",
    ),
    "written again": (lambda images: touch(Path(images.table.paths[0])), r"1 images are new or .*plain\.jpg"),
    "gone": (lambda images: Path(images.table.paths[1]).unlink(), r"1 images are new or .*large\.jpg"),
    "no pixels": (lambda images: file_of(images, "pixels").unlink(), DAMAGED),
    "another version": (lambda images: with_format(images, 0), DAMAGED),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_one_is_refused_and_made_again(images: Prepared, case: str) -> None:
    change, message = STALE[case]
    images.build(RESIZES[0])
    change(images)
    with pytest.raises(InputError, match=message) as raised:
        images.folder.find(images.table, RESIZES[0])
    assert "\n" not in str(raised.value)
    if case != "gone":
        check_rows(images, RESIZES[0])


# how it is made


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that were decoded, in shards of two."""
    monkeypatch.setattr(cache_build, "FEWEST", 2)
    monkeypatch.setattr(cache_build, "MOST", 2)
    names = []

    def read(path: str, limits: ImageLimits) -> ImageFile:
        names.append(Path(path).name)
        return ImageFile(path, limits)

    monkeypatch.setattr(cache_build, "ImageFile", read)
    return names


def names(*rows: int) -> list[str]:
    return [[*IMAGES][row] for row in rows]


def test_images_that_came_later_or_changed_are_appended(images: Prepared, decoded: list[str]) -> None:
    few = Prepared(images.table.take(np.arange(5)), images.folder)
    few.build(RESIZES[0])
    first = {path: path.read_bytes() for path in images.folder.shard_paths(RESIZES[0], "pixels")}
    with pytest.raises(InputError, match=r"4 images are new or have changed since, such as .*/palette\.png"):
        images.folder.find(images.table, RESIZES[0])
    assert images.folder.find(few.table, RESIZES[0]) is not None
    Path(images.table.paths[1]).write_bytes(IMAGES["plain.jpg"])
    decoded.clear()
    progress: list[int] = []
    images.build(RESIZES[0], progress.append)
    assert decoded == names(1, 5, 6, 7, 8)
    assert progress == [4, 2, 2, 1]
    assert (
        first.items() <= {path: path.read_bytes() for path in images.folder.shard_paths(RESIZES[0], "pixels")}.items()
    )
    check_rows(images, RESIZES[0])
    for row in (0, 2, 3):  # a shard of which less than half is left goes
        Path(images.table.paths[row]).write_bytes(IMAGES["dot.png"])
    check_rows(images, RESIZES[0])
    assert len({*first} & {*images.folder.shard_paths(RESIZES[0], "pixels")}) == 1
    few.build(RESIZES[0])
    assert len(images.folder.shard_paths(RESIZES[0], "pixels")) == 4


def test_a_build_that_was_killed_goes_on(images: Prepared, decoded: list[str]) -> None:
    def build() -> None:
        images.build(RESIZES[1], lambda number: os.kill(os.getpid(), signal.SIGKILL) if decoded else None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, from Python 3.12 on
        child = multiprocessing.get_context("fork").Process(target=build)
        child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    images.build(RESIZES[1])
    assert decoded == names(*range(2, 9))
    check_rows(images, RESIZES[1])


def test_a_finished_one_is_left_alone(images: Prepared, decoded: list[str]) -> None:
    images.build(RESIZES[0])
    before, count = {path: path.stat() for path in images.folder.path.iterdir()}, len(decoded)
    progress: list[int] = []
    assert images.build(RESIZES[0], progress.append) == []
    assert {path: path.stat().st_mtime_ns for path in before} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }
    assert (len(decoded), progress) == (count, [9])


def test_who_reads_the_old_one_keeps_it(images: Prepared) -> None:
    images.build(RESIZES[0])
    cache = images.folder.find(images.table, RESIZES[0])
    assert cache is not None
    before = cache.pixels(0)
    for path in images.table.paths:
        Path(path).write_bytes(IMAGES["large.jpg"])
    images.build(RESIZES[0])
    assert torch.equal(cache.pixels(0), before)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_write_the_same(images: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_build, "FEWEST", 2)
    progress: list[int] = []
    images.build(RESIZES[2], progress.append, processes=2)
    check_rows(images, RESIZES[2])
    assert (progress[0], sorted(progress)) == (0, [0, 4, 5])


def test_a_disk_that_is_too_small(images: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"the cache takes 0\.3 GB, and 0\.0 GB are free;"):
        images.build(Resize("warp", 3200))


def test_an_image_that_changes_meanwhile(images: Prepared) -> None:
    checked = check_images(images.table, images.folder, processes=1, advance=lambda _: None)
    Path(images.table.paths[0]).write_bytes(IMAGES["cmyk.jpg"])
    with pytest.raises(InputError, match=r"plain\.jpg: has changed while the cache was made"):
        build_cache(images.folder, RESIZES[1], checked, processes=1, advance=lambda _: None)
    assert images.folder.find(images.table, RESIZES[1]) is None


# where it is


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").touch()
    root, list_ = str(tmp_path), str(tmp_path / "mine.csv")
    assert CacheFolder.from_setting("auto", root, "sop") == CacheFolder(tmp_path / ".dml" / "sop", root)
    assert CacheFolder.from_setting("auto", list_, "csv") == CacheFolder(tmp_path / ".dml" / "mine", list_)
    assert CacheFolder.from_setting("/fast", None, "emoji") == CacheFolder(Path("/fast/emoji"), None)


def test_two_data_sets_of_one_name_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = tmp_path / "fast"

    def find(root: Path | str, name: str = "folder") -> str:
        folder = CacheFolder.from_setting(str(fast), str(root), name)
        assert folder.path.parent == fast
        return folder.path.name

    for parent in ("a", "b"):
        (tmp_path / parent / "set").mkdir(parents=True)
        (tmp_path / parent / "mine.csv").touch()
    first, second = (tmp_path / parent / "set" for parent in "ab")
    assert re.fullmatch(r"folder-[0-9a-f]{8}", find(first))
    assert find(first) != find(second)
    assert re.fullmatch(r"mine-[0-9a-f]{8}", find(tmp_path / "a" / "mine.csv", "csv"))
    assert find(tmp_path / "a" / "mine.csv", "csv") != find(tmp_path / "b" / "mine.csv", "csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(first)
    assert find(first) == find(f"{first}/") == find("a/set") == find(tmp_path / "link")


def test_names(tmp_path: Path) -> None:
    (tmp_path / "set.zip").touch()
    paths = [f"{tmp_path}/a/1.jpg", f"{tmp_path}x/1.jpg", f"{tmp_path}/set.zip/2.jpg", "elsewhere/2.jpg"]
    short = ["a/1.jpg", f"{tmp_path}x/1.jpg", "set.zip/2.jpg", "elsewhere/2.jpg"]
    assert CacheFolder(Path(), f"{tmp_path}/").relative_paths(paths) == short
    assert CacheFolder(Path(), f"{tmp_path}/set.zip").relative_paths(paths) == short
    assert CacheFolder(Path(), None).relative_paths(paths) == paths


def test_a_file_that_is_cut_short_while_it_is_open(images: Prepared) -> None:
    images.build(RESIZES[0])
    cache = images.folder.find(images.table, RESIZES[0])
    assert cache is not None
    os.truncate(file_of(images, "pixels"), 32 * 32 * 3 * 5)
    assert cache.pixels(0) is not None
    with pytest.raises(InputError, match=r"warp-32\.\w+\.pixels: was cut short"):
        cache.pixels(8)


def test_links_beside_the_folder_are_the_users_own_and_pipes_are_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "set" / ".dml" / "sop"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "set")
    refuse_links(tmp_path / "link" / ".dml" / "sop")
    (tmp_path / "set" / "images").symlink_to("/")
    refuse_links(folder)
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "other").symlink_to("/")
    refuse_links(tmp_path / "fast" / "sop")
    with hold_preparation_lock(folder):
        pass
    os.mkfifo(folder / "table.parquet")
    with pytest.raises(InputError, match=r"table\.parquet: isn't a file"):
        refuse_links(folder)
