import gzip
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from trees.mnist import FOLDER, NUMBERS, TREE, idx, pixels, write_pixels

from dml.data.image_files.images import read_image
from dml.data.image_files.limits import limit_list_bytes
from dml.data.image_files.pngs import store_as_pngs, user_cache_folder
from dml.data.readers import digits, mnist
from dml.runtime.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    TREE.build(tmp_path)
    return tmp_path


def check(folder: Path) -> None:
    """Images and labels are those of the files."""
    table = mnist.read(folder)
    assert table.levels == ("digit",)
    assert table.names == (tuple("0123456789"),)
    for split, part in (("train", "train"), ("test", "t10k")):
        of = table.subset(split)
        assert of.labels[:, 0].tolist() == NUMBERS[part].tolist()
        for path, image in zip(of.paths.tolist(), pixels(part), strict=True):
            assert np.array_equal(read_image(path).numpy(), np.stack([image] * 3))


def test_images_and_labels(root: Path) -> None:
    check(root)


@pytest.mark.parametrize("place", [".", "raw"])
@pytest.mark.parametrize("separator", ["-", "."])
def test_other_places_and_names(place: str, separator: str, root: Path) -> None:
    (root / "other" / place).mkdir(parents=True)
    for path in (root / FOLDER).iterdir():
        name = path.name.replace("-idx", f"{separator}idx")
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (root / "other" / place / name.removesuffix(".gz")).write_bytes(content)
    check(root / "other")


def test_the_images_are_stored_once(root: Path) -> None:
    def archives() -> dict[str, tuple[int, bytes]]:
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (root / FOLDER).glob("*.zip")}

    mnist.read(root)
    first = archives()
    assert len(first) == 2
    mnist.read(root)
    assert archives() == first
    write_pixels(root, "t10k", 255 - pixels("t10k"))
    table = mnist.read(root).subset("test")
    assert len(archives()) == 3  # other images are never taken for these
    assert np.array_equal(read_image(str(table.paths[4])).numpy()[0], 255 - pixels("t10k")[4])
    assert not [path for path in (root / FOLDER).iterdir() if path.name.startswith(".")]


def test_an_archive_is_the_same_whenever_it_is_written(tmp_path: Path) -> None:
    paths = [Path(store_as_pngs(pixels("train"), "images", [tmp_path / name])[0]).parent for name in ("a", "b")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_cache_stands_in_for_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert user_cache_folder() == tmp_path / "cache" / "dml"
    (tmp_path / "file").touch()
    refused, other = tmp_path / "file" / "folder", tmp_path / "file"
    paths = store_as_pngs(pixels("train"), "images", [refused, user_cache_folder()])
    assert Path(paths[0]).parent.parent == user_cache_folder()
    assert store_as_pngs(pixels("train"), "images", [other, refused, user_cache_folder()]) == paths
    with pytest.raises(
        InputError, match=r"images-\w+\.zip: cannot be written to .*/file/folder \(.*\); XDG_CACHE_HOME"
    ):
        store_as_pngs(pixels("train"), "images", [refused])


def test_processes_do_not_share_what_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = Path.replace

    def spied(self: Path, other: Path) -> Path:
        written.append(self.name)
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", spied)
    store_as_pngs(pixels("train"), "images", [tmp_path])
    assert str(os.getpid()) in written[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file of 1 dimensions of unsigned bytes"),
        (idx(np.zeros((2, 2), dtype=np.uint8)), "not an IDX file of 1 dimensions"),
        (bytes((0, 0, 9, 1)), "not an IDX file of 1 dimensions"),
        (bytes((0, 0, 8, 1, 0, 0)), "not an IDX file of 1 dimensions"),
        (idx(NUMBERS["t10k"].astype(np.uint8))[:-1], "9 values, expected 10 by its header"),
        (idx(NUMBERS["t10k"].astype(np.uint8)) + b"0", "11 values, expected 10 by its header"),
    ],
)
def test_broken_files(content: bytes, message: str, root: Path) -> None:
    (root / FOLDER / "t10k-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(InputError, match=f"t10k-labels-idx1-ubyte: {message}"):
        mnist.read(root)


@pytest.mark.parametrize("keep", [0, 5, 100])
def test_broken_compressed_files(keep: int, root: Path) -> None:
    path = root / FOLDER / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz: (cannot be unpacked|not an IDX file)"):
        mnist.read(root)


# scikit-learn's digits


def test_digits(tmp_path: Path) -> None:
    table = digits.read(tmp_path)
    assert table.counts() == {"train": {"images": 1347, "digit": 10}, "test": {"images": 450, "digit": 10}}
    tested = Counter(table.subset("test").labels[:, 0].tolist())
    assert {43 <= number <= 46 for number in tested.values()} == {True}
    assert table.labels[:10, 0].tolist() == [*range(10)]
    image = read_image(str(table.paths[0]))
    assert image.shape == (3, 8, 8)
    assert image[0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 of 16


def test_the_digits_splits_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first, second, other = (digits.read(tmp_path, seed=seed).split.tolist() for seed in (0, 0, 1))
    assert first == second != other
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("fraction", [0, 1.0, -1, 0.001])
def test_fractions_of_digits(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"dataset\.reader\.test_fraction={fraction}: expected a number between 0 and 1"
    ):
        digits.read(tmp_path, test_fraction=fraction)


def test_digits_go_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(digits.read().paths[0]).parents[1] == tmp_path / "dml"


def test_a_small_file_with_much_in_it(root: Path) -> None:
    path = root / FOLDER / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    message = r"ubyte\.gz: more than 1,000,000 bytes; data\.max_list_bytes with a larger number reads it"
    with limit_list_bytes(1_000_000), pytest.raises(InputError, match=message):
        mnist.read(root)
