"""Rows about hostile files: decompression bombs, devices, pipes and impossible paths."""

import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image

from faults.commands import MEMORY_LIMIT, TIME_LIMIT, run
from faults.fixtures import Fixtures, prepare_arguments, train_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_told

COMMANDS = ("train.py", "scripts/prepare.py")
Hostile = Callable[[Try, Path], Path]
"""A function that adds a hostile file to the images, or makes a hostile data set, and returns dataset.root."""


def _first_image(images: Path) -> Path:
    return min(images.rglob("*.webp"))


def _remove_for(path: Path, suffix: str) -> Path:
    path.unlink()
    return path.with_suffix(suffix)


def add_huge_jpeg(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add a JPEG of 691 bytes whose header claims 65,000 x 65,000 pixels."""
    buffer = BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    content = bytearray(buffer.getvalue())
    marker = content.index(b"\xff\xc0")
    content[marker + 5 : marker + 9] = struct.pack(">HH", 65000, 65000)
    _remove_for(_first_image(images), ".jpg").write_bytes(content)
    return images


def add_huge_png(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add a PNG of a few kilobytes with 13,300 x 13,300 pixels."""
    side = 13300
    rows = zlib.compressobj(9)
    row = bytes(1 + side // 8 + 1)
    packed = b"".join(rows.compress(row) for _ in range(side)) + rows.flush()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    _remove_for(_first_image(images), ".png").write_bytes(content)
    return images


def list_huge_member(attempt: Try, images: Path) -> Path:
    """List an image in a zip file of 2 MB that unpacks to 2 GB of zeros."""
    path = attempt.folder / "bomb.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("big.png", "w", force_zip64=True) as member,
    ):
        for _ in range(2000):
            member.write(bytes(1 << 20))
    return _write_list(attempt, images, "bomb.zip/big.png")


def use_endless_list(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Use /dev/zero as the CSV file."""
    return Path("/dev/zero")


def use_link_to_endless_list(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Use a link to /dev/zero as the CSV file."""
    path = attempt.folder / "list.csv"
    path.symlink_to("/dev/zero")
    return path


def add_endless_image(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add an image that is a link to /dev/zero."""
    path = _first_image(images)
    path.unlink()
    path.symlink_to("/dev/zero")
    return images


def add_pipe_image(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add an image that is a FIFO without a writer."""
    path = _first_image(images)
    path.unlink()
    os.mkfifo(path)
    return images


def use_pipe_as_list(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Use a FIFO as the CSV file."""
    path = attempt.folder / "list.csv"
    os.mkfifo(path)
    return path


def list_nul_path(attempt: Try, images: Path) -> Path:
    """List a path that contains a NUL."""
    return _write_list(attempt, images, "a\0b.png")


def add_link_to_itself(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add an image that is a link to itself."""
    path = _first_image(images)
    path.unlink()
    path.symlink_to(path)
    return images


def use_list_link_to_itself(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Use a link to itself as the CSV file."""
    path = attempt.folder / "list.csv"
    path.symlink_to(path)
    return path


def use_root_link_to_itself(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Use a link to itself as the data set's folder."""
    path = attempt.folder / "loop"
    path.symlink_to(path)
    return path


def add_link_to_parent(attempt: Try, images: Path) -> Path:  # noqa: ARG001
    """Add a class folder that is a link to the data set's folder."""
    (images / "loop").symlink_to(images)
    return images


def list_long_path(attempt: Try, images: Path) -> Path:
    """List a path of 5,000 characters."""
    return _write_list(attempt, images, "a" * 5000 + ".png")


def _write_list(attempt: Try, images: Path, extra: str) -> Path:
    """Write a CSV file of the images and one more path."""
    lines = ["path,label"]
    lines += [f"images/{path.relative_to(images)},{path.parent.name}" for path in sorted(images.rglob("*.webp"))]
    lines.append(f"{extra},{lines[1].partition(',')[2]}")
    path = attempt.folder / "list.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


BOMBS = (
    add_huge_jpeg,
    add_huge_png,
    list_huge_member,
    use_endless_list,
    use_link_to_endless_list,
    add_endless_image,
    add_pipe_image,
    use_pipe_as_list,
)
ODD = (
    list_nul_path,
    add_link_to_itself,
    use_list_link_to_itself,
    use_root_link_to_itself,
    add_link_to_parent,
    list_long_path,
)


def _try_makers(makers: tuple[Hostile, ...]) -> Callable[[Try], str]:
    def make_try(attempt: Try) -> str:
        images = attempt.folder / "images"
        shutil.copytree(Fixtures(attempt.fixtures).images, images)
        make = makers[attempt.number % len(makers)]
        script = COMMANDS[attempt.number // len(makers) % 2]
        root = make(attempt, images)
        folder = attempt.folder / "run"
        arguments = train_arguments(root, folder) if script == "train.py" else prepare_arguments(root)
        if root != images and root.suffix in (".csv", "") and root.name != "loop":
            arguments = ["dataset=csv" if argument == "dataset=folder" else argument for argument in arguments]
        ended = run(script, *arguments, folder=attempt.folder)
        try:
            return check_told(ended, (2,), attempt.folder)
        except FailedError as error:
            raise FailedError(f"{make.__name__}, {script}: {error.why}", error.ended) from error

    return make_try


LIMITS = f"one line and exit code 2 within {TIME_LIMIT:.0f} s and {MEMORY_LIMIT / 1e9:.0f} GB"
FAULTS = [
    Fault(
        "bombs",
        "a 691-byte JPEG that claims 65,000 px; a small PNG of 13,300 px; a 2 MB zip with a 2 GB member; a CSV, or a "
        "link, to /dev/zero; a FIFO",
        32,
        LIMITS,
        "Only regular files are read; their bytes and pixels are counted before they are decoded; a user can raise "
        "the limits.",
        _try_makers(BOMBS),
    ),
    Fault(
        "odd-paths",
        "a NUL in a CSV's path, a path of 5,000 characters, links to themselves",
        24,
        LIMITS,
        "The error line names the path.",
        _try_makers(ODD),
    ),
]
