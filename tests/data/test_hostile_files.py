"""Files that somebody made to hang a program or to take its memory, and others that are no pictures at all."""

import os
import signal
import socket
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dml.data import images
from dml.data.dataset import ImageDataset
from dml.data.images import (
    ImageFile,
    ImageLimits,
    ImageMemoryError,
    MissingImageError,
    UnreadableImageError,
    read_image,
)
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError, read_regular

SECONDS = 20  # far more than any of these takes, on a busy machine too
BYTES = 40 << 20


@pytest.fixture(autouse=True)
def _within_limits() -> Iterator[None]:
    """A file that hangs its reader, or takes Python's memory, fails its test."""

    def hangs(*_: object) -> None:
        raise AssertionError(f"it takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert peak < BYTES, f"{peak / 1e6:.0f} MB"


def encoded(kind: str, size: tuple[int, int] = (8, 8), **options: object) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, (200, 100, 0)).save(file, kind, **options)
    return file.getvalue()


def refused(path: Path, message: str, kind: type[InputError] = UnreadableImageError) -> None:
    with pytest.raises(kind) as raised:
        read_image(str(path))
    assert str(raised.value).startswith(f"image {path}: {message}"), raised.value
    assert "\n" not in str(raised.value)


# sizes that a header claims


def jpeg(height: int, width: int, marker: bytes = b"\xff\xc0") -> bytes:
    content = encoded("JPEG", progressive=marker == b"\xff\xc2")
    at = content.index(marker) + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def png(side: int) -> bytes:
    """Black or white pixels, all there: 21 KB for 13,300 x 13,300."""
    file = BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


def png_header(height: int, width: int) -> bytes:
    content = encoded("PNG")
    header = struct.pack(">II", width, height) + content[24:29]
    return content[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + content[33:]


CLAIMS: dict[str, Callable[[int, int], bytes]] = {
    "JPEG": jpeg,
    "progressive JPEG": lambda height, width: jpeg(height, width, b"\xff\xc2"),
    "PNG": png_header,
    "PPM": lambda height, width: f"P6 {width} {height} 255\n".encode() + bytes(9),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_few_bytes_that_claim_gigabytes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(CLAIMS[kind](65000, 65000))
    assert path.stat().st_size < 1500
    message = "65,000 x 65,000 pixels, at most 120,000,000 are decoded; data.max_pixels=4225000000 reads it (data."
    refused(path, message)


def test_the_limit_can_be_raised_above_pillows(tmp_path: Path) -> None:
    """Which warns, and fails from twice as many pixels on; other readers of this process keep it."""
    before, path = Image.MAX_IMAGE_PIXELS, tmp_path / "image.png"
    path.write_bytes(png_header(20_000, 20_000))
    with pytest.raises(UnreadableImageError, match=r"data\.max_pixels=400000000 reads it"):
        ImageFile(str(path))

    class Seen(ImageLimits):
        def check_pixels(self, height: int, width: int) -> None:
            raise RefusedFileError(f"seen {height} {width}")

    with pytest.raises(UnreadableImageError, match="seen 20000 20000"):  # past Pillow's check, before it decodes
        ImageFile(str(path), Seen())
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_value_that_the_line_names_is_enough(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(kind, (30, 20)))
    with pytest.raises(UnreadableImageError, match=r": 30 x 20 pixels, .*; data\.max_pixels=600 reads it"):
        read_image(str(path), ImageLimits(max_pixels=599))
    size = path.stat().st_size
    with pytest.raises(UnreadableImageError, match=rf"; data\.max_image_bytes={size} reads it"):
        read_image(str(path), ImageLimits(max_image_bytes=size - 1))
    assert read_image(str(path), ImageLimits(size, 600)).shape == (3, 20, 30)


@pytest.mark.parametrize(("size", "scaled"), [((100_000, 1), "25,600,000 x 256"), ((1, 100_000), "256 x 25,600,000")])
def test_a_strip_that_would_be_scaled_to_gigabytes(tmp_path: Path, size: tuple[int, int], scaled: str) -> None:
    path = tmp_path / "strip.png"
    path.write_bytes(encoded("PNG", size))
    message = f"pixels would be scaled to {scaled}, at most 120,000,000 pixels; data.max_pixels=6553600000 scales it"
    with pytest.raises(UnreadableImageError, match=message):
        Resize("shorter", 256)(ImageFile(str(path)))
    assert Resize("longer", 256)(ImageFile(str(path))).numel() == 3 * 256


# archives


def archive(path: Path, size: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file, file.open("1.png", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return path


def test_a_small_archive_with_a_large_member(tmp_path: Path) -> None:
    path = archive(tmp_path / "set.zip", 128 << 20)
    assert path.stat().st_size < 3 << 20
    limits = ImageLimits(max_image_bytes=100 << 20)
    message = r"set\.zip/1\.png: 134,217,728 bytes, at most 104,857,600 are read; data\.max_image_bytes=134217728 reads"
    with pytest.raises(UnreadableImageError, match=message):
        ImageFile(f"{path}/1.png", limits)


def test_a_member_that_says_less_than_it_has(tmp_path: Path) -> None:
    path = archive(tmp_path / "set.zip", 128 << 20)
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<I", 128 << 20), struct.pack("<I", 100)))
    with pytest.raises(UnreadableImageError, match=r"1\.png: cannot be decoded \(the archive is damaged\)"):
        ImageFile(f"{path}/1.png")


def test_an_archive_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "set.zip")
    refused(tmp_path / "set.zip/1.png", "a named pipe, not a regular file")


# what is no file


def make(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "itself":
        path.symlink_to(path.name)
    else:
        path.symlink_to(kind)


KINDS = {
    "pipe": "a named pipe, not a regular file (data.on_corrupt=skip leaves it out)",
    "socket": "a socket, not a regular file",
    "folder": "a folder, not a regular file",
    "/dev/zero": "a character device, not a regular file",
    "/dev/stdin": "",  # whatever it is here
    "itself": "cannot be read (Too many levels of symbolic links)",
    "missing": "no such file",
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path("x.jpg")
    make(path, kind)
    refused(path, KINDS[kind])


def test_a_file_that_is_replaced_by_a_pipe_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(encoded("JPEG"))
    opened = os.open

    def replaced(name: str, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(RefusedFileError, match="a named pipe"):
        read_regular(path, 100, "option")


def test_a_regular_file_that_has_no_size(tmp_path: Path) -> None:
    """As all in /proc: what it has is counted while it is read."""
    version = Path("/proc/version").read_bytes()
    assert read_regular("/proc/version", len(version), "option") == version
    with pytest.raises(RefusedFileError, match=r"^more than 5 bytes; option with a larger number reads it$"):
        read_regular("/proc/version", 5, "option")
    (tmp_path / "x.jpg").symlink_to("/proc/version")
    refused(tmp_path / "x.jpg", "cannot be decoded (not an image that Pillow can read)")


def test_names_that_no_file_has(tmp_path: Path) -> None:
    refused(tmp_path / ("x" * 300), "cannot be read (File name too long)")
    refused(tmp_path / ("x/" * 3000), "cannot be read (File name too long)")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file/1.jpg", "no such file", MissingImageError)
    with pytest.raises(UnreadableImageError, match=r"^image a\\x00b\.jpg: a NUL byte, which no file's name holds"):
        read_image("a\0b.jpg")


# much of other things than pixels


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
@pytest.mark.data_sets
def test_compressed_text_that_is_much_larger(tmp_path: Path, kind: bytes) -> None:
    packed = zlib.compressobj()
    text = b"".join([*(packed.compress(bytes(1 << 20)) for _ in range(60)), packed.flush()])
    flags = b"\1\0\0\0" if kind == b"iTXt" else b"\0"
    content = encoded("PNG")
    path = tmp_path / "image.png"
    path.write_bytes(content[:33] + chunk(kind, b"key\0" + flags + text) + content[33:])
    refused(path, "cannot be decoded (damaged, or stored in a way that isn't read)")


def test_exif_with_a_directory_within_itself(tmp_path: Path) -> None:
    entries = [struct.pack("<HHII", 0x8769, 4, 1, 8), struct.pack("<HHII", 0x112, 3, 1, 6)]
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + b"".join(entries) + struct.pack("<I", 8)
    path = tmp_path / "image.jpg"
    content = encoded("JPEG", (8, 16))
    path.write_bytes(content[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + content[2:])
    assert read_image(str(path)).shape == (3, 8, 16)


def test_a_program_for_another_program_is_not_run(tmp_path: Path) -> None:
    """Pillow hands PostScript over to Ghostscript."""
    path = tmp_path / "image.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    refused(path, "cannot be decoded (not an image that Pillow can read)")


# memory


@pytest.mark.parametrize(
    "error", [MemoryError(), ValueError("Insufficient memory (case 4)"), OSError("out of memory error when reading")]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_memory_that_runs_out_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise error

    path = tmp_path / "image"
    path.write_bytes(encoded(kind, (30, 20)))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", run_out)
    monkeypatch.setattr(images.ImageOps, "exif_transpose", run_out)
    size = path.stat().st_size
    refused(path, f"the memory ran out while it was read ({size:,} bytes, 30 x 20 pixels); ", ImageMemoryError)
    table = ImageTable(np.array([str(path)]), np.zeros((1, 1), np.int64), np.array(["train"]), ("class",))
    for on_corrupt in ("raise", "drop", "replace"):  # it would leave out more the less memory there is
        with pytest.raises(ImageMemoryError):
            ImageDataset(table, Resize("warp", 8), on_corrupt)[0]
