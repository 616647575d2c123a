import gzip
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trees.tree import Damage, Fault, Tree, overwrite, remove, together

from dml.data.readers.mnist import read

FOLDER = "MNIST/raw"
NUMBERS = {"train": np.random.default_rng(0).permutation(np.repeat(np.arange(10), 2)), "t10k": np.arange(10)[::-1]}


def pixels(part: str) -> NDArray[np.uint8]:
    """Images (N, 28, 28), each with its digit's value in the first pixel."""
    drawn = np.random.default_rng(len(part)).integers(0, 256, (len(NUMBERS[part]), 28, 28), dtype=np.uint8)
    drawn[:, 0, 0] = NUMBERS[part]
    return drawn


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def write_numbers(root: Path, part: str, numbers: NDArray[np.int64]) -> None:
    """The labels, unpacked as torchvision leaves them."""
    (root / FOLDER / f"{part}-labels-idx1-ubyte").write_bytes(idx(numbers.astype(np.uint8)))


def write_pixels(root: Path, part: str, images: NDArray[np.uint8]) -> None:
    """The images, as they are published."""
    (root / FOLDER / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))


def build(root: Path) -> None:
    (root / FOLDER).mkdir(parents=True)
    for part, numbers in NUMBERS.items():
        write_pixels(root, part, pixels(part))
        write_numbers(root, part, numbers)


def renumber(old: int, new: int) -> Damage:
    def damage(root: Path) -> None:
        for part, numbers in NUMBERS.items():
            write_numbers(root, part, np.where(numbers == old, new, numbers))

    return damage


def change_archive(content: bytes | None) -> Damage:
    """The first test image in the zip file holds other bytes, or is gone."""

    def damage(root: Path) -> None:
        read(root)
        (path,) = (root / FOLDER).glob("mnist-test-*.zip")
        with zipfile.ZipFile(path) as archive:
            images = {name: archive.read(name) for name in archive.namelist()}
        del images["00000.png"]
        with zipfile.ZipFile(path, "w") as archive:
            for name, image in (images | ({"00000.png": content} if content else {})).items():
                archive.writestr(name, image)

    return damage


TREE = Tree(
    dataset="mnist",
    build=build,
    counts={"train": {"images": 20, "digit": 10}, "test": {"images": 10, "digit": 10}},
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*train-images-idx3-ubyte.*\(https://.*/mnist/\)"),
        "no_list": Fault(
            remove(f"{FOLDER}/t10k-labels-idx1-ubyte"), rf"no {FOLDER}/t10k-labels-idx1-ubyte or .*\.gz.* in it"
        ),
        "broken_line": Fault(
            lambda root: write_pixels(root, "train", pixels("train")[:0]),
            r"train-labels-idx1-ubyte: 20 labels, 0 images in train-images-idx3-ubyte\.gz",
        ),
        "not_a_number": Fault(
            overwrite(f"{FOLDER}/train-labels-idx1-ubyte"), r"train-labels-idx1-ubyte: not an IDX file of 1 dimension"
        ),
        "fewer_images": Fault(
            together(
                lambda root: write_pixels(root, "t10k", pixels("t10k")[:9]),
                lambda root: write_numbers(root, "t10k", NUMBERS["t10k"][:9]),
            ),
            "9 images in the test split, published 10",
        ),
        "label_gap": Fault(renumber(3, 4), "9 digit in the train split, published 10"),
        "in_two_splits": Fault(
            lambda root: write_pixels(root, "t10k", pixels("train")),
            r"t10k-labels-idx1-ubyte: 10 labels, 20 images in t10k-images-idx3-ubyte\.gz",
        ),
        "class_in_both": None,  # all of them are
        "missing_image": Fault(change_archive(None), r"image .*/mnist-test-\w+\.zip/00000\.png: no such file"),
        "unreadable_image": Fault(change_archive(b"none"), r"image .*/mnist-test-\w+\.zip/00000\.png: cannot be"),
    },
)
