"""Preparing beside other processes, into folders that a stranger laid out, and beside what a disk has damaged."""

import shutil
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from configurations import compose, settings_of
from conftest import ONE_HEAD
from PIL import Image

from dml.data.prepared.cache import hold_preparation_lock
from dml.data.transforms import Resize
from dml.run import builders, prepare_job
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

pytestmark = pytest.mark.pipeline

FOLDER = ["dataset=folder", "dataset.reader.val_fraction=0", "dataset.queries_in_gallery=true"]
ARGUMENTS = [*FOLDER, "processes=1", "sheet.classes=1", "resize=8"]
FORK = get_context("fork")
Prepare = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "query", "gallery"):
        for i in range(4):
            path = tmp_path / "set" / split / f"{split[0] if split == 'train' else 'x'}{i % 2}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return tmp_path / "set"


@pytest.fixture
def prepare(root: Path) -> Prepare:
    def prepare(*overrides: str) -> None:
        config = compose(*ARGUMENTS, *overrides, command="prepare")
        config.dataset.root = str(root)
        prepare_job.prepare(config, RunFolder(root), [])

    return prepare


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train_reads(root: Path) -> None:
    """What a training reads of what was prepared."""
    config = compose(*FOLDER)
    config.dataset.root = str(root)
    folder = builders.find_cache_folder(settings_of(config))
    assert folder is not None
    folder.find(builders.build_table(settings_of(config)), Resize("warp", 8))


LINKS = [
    ".dml",
    ".dml/folder",
    ".dml/cache",
    ".dml/folder.lock",
    *(
        f".dml/folder/{name}"
        for name in (
            "table.parquet",
            "verified.parquet",
            "sheet_train.png",
            "warp-8.0a1b2c3d.pixels",
            "warp-8.0a1b2c3d.json",
            "unknown",
        )
    ),
]


@pytest.mark.first_cases(len(LINKS) + 2)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dangling", [False, True])
def test_nothing_is_written_or_read_through_links(
    prepare: Prepare, root: Path, tmp_path: Path, link: str, dangling: bool
) -> None:
    prepare()
    outside = tmp_path / "outside"
    shutil.copytree(root / ".dml", outside)
    (outside / "mine").write_text("mine")
    path = root / link
    name = Path(link).relative_to(".dml")
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    target = outside / "missing" if dangling else outside / name if (outside / name).exists() else outside / "mine"
    path.symlink_to(target)
    before = files(tmp_path)
    reads: list[Callable[[], None]] = [prepare, lambda: train_reads(root)]
    for read in reads:
        with pytest.raises(InputError, match=f"{path}: is a link to {target}, and .* delete it") as raised:
            read()
        assert "\n" not in str(raised.value)
    assert files(tmp_path) == before


def test_the_second_of_two_is_refused(prepare: Prepare, root: Path, refused: Callable[..., str]) -> None:
    folder = root / ".dml" / "folder"
    folder.mkdir(parents=True)
    is_held = FORK.Event()

    def hold() -> None:
        with hold_preparation_lock(folder):
            is_held.set()
            time.sleep(60)

    holder = FORK.Process(target=hold)
    holder.start()
    assert is_held.wait(20)
    before = files(root)
    line = refused(*ARGUMENTS, f"dataset.root={root}", command="prepare")
    assert f"{folder}: process {holder.pid} on " in line
    assert line.endswith("is preparing it; try again when that has ended")
    assert files(root) == before
    train_reads(root)  # which needs no lock
    holder.kill()
    holder.join()
    prepare()


def test_one_that_ends_leaves_no_lock_and_no_partial_file(prepare: Prepare, root: Path) -> None:
    prepare()
    partial = root / ".dml" / "folder" / ".table.parquet.1-00000000.partial"  # of a process that was killed
    partial.touch()
    before = files(root)
    prepare()
    assert files(root) | {str(partial.relative_to(root)): b""} == before
    with hold_preparation_lock(root / ".dml" / "folder"):
        pass


def test_training_on_damaged_pixels_ends_with_a_line(
    refused: Callable[..., str], small_emoji: Path, tmp_path: Path
) -> None:
    """The line holds the command that repairs them."""
    root = tmp_path / "emoji.zip"
    shutil.copy(small_emoji, root)
    config = compose("dataset.counts=null", "sheet.classes=1", "resize=32", command="prepare")
    config.dataset.root = str(root)
    prepare_job.prepare(config, RunFolder(tmp_path), [])
    pixels = next((tmp_path / ".dml" / "emoji").glob("warp-32.*.pixels"))
    pixels.write_bytes(bytes(pixels.stat().st_size))
    line = refused(f"dataset.root={root}", *ONE_HEAD, "data.num_workers=1", f"hydra.run.dir={tmp_path}/run")
    assert line.startswith(f"error: {pixels.with_suffix('.json')}: it, or its pixels, are damaged")
    assert f"run dml prepare dataset=emoji dataset.root={root} resize=32 mode=warp again" in line
