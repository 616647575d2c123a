"""Functions that damage a file."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Damage = Callable[[Path, np.random.Generator], None]


def flip_bit(path: Path, rng: np.random.Generator, bits: int = 1) -> None:
    """Flip some bits at random places of a file."""
    content = bytearray(path.read_bytes())
    for bit in rng.integers(8 * len(content), size=bits).tolist():
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flip_thousandth(path: Path, rng: np.random.Generator) -> None:
    """Flip as many bits as a tenth of a percent of the bytes of a file."""
    flip_bit(path, rng, max(1, path.stat().st_size // 1000))


def empty_file(path: Path, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Delete the content of a file."""
    path.write_bytes(b"")


def cut_short(path: Path, rng: np.random.Generator) -> None:
    """Cut a file short at a random place."""
    content = path.read_bytes()
    path.write_bytes(content[: int(rng.integers(1, len(content)))])


def zero_block(path: Path, rng: np.random.Generator) -> None:
    """Overwrite a part of a file with zeros, as if the disk had lost a block."""
    _overwrite(path, rng, lambda length: bytes(length))


def randomize_block(path: Path, rng: np.random.Generator) -> None:
    """Overwrite a part of a file with random bytes."""
    _overwrite(path, rng, rng.bytes)


def insert_byte(path: Path, rng: np.random.Generator) -> None:
    """Insert a random byte into a file."""
    content = path.read_bytes()
    place = int(rng.integers(len(content) + 1))
    path.write_bytes(content[:place] + rng.bytes(1) + content[place:])


def replace_content(path: Path, rng: np.random.Generator) -> None:
    """Replace the content of a file by another valid text."""
    texts = [b"[]\n", b"null\n", b"{}\n", b"7\n", b'"text"\n', b"a: {b: [1, 2]}\n", b"step,loss\n", b"x,y\n1,\xff\n"]
    path.write_bytes(texts[int(rng.integers(len(texts)))])


def nest_deeply(path: Path, rng: np.random.Generator) -> None:  # noqa: ARG001
    """Replace the content of a file by nested lists that are deeper than a recursive reader can go."""
    path.write_bytes(b"[" * 20_000 + b"]" * 20_000)


def change_digit(path: Path, rng: np.random.Generator) -> None:
    """Change one digit in a file, or flip a bit if the file has no digit."""
    content = bytearray(path.read_bytes())
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        flip_bit(path, rng)
        return
    place = places[int(rng.integers(len(places)))]
    content[place] = ord("0") + (content[place] - ord("0") + int(rng.integers(1, 10))) % 10
    path.write_bytes(content)


KINDS: Mapping[str, Damage] = {
    "empty": empty_file,
    "cut short": cut_short,
    "zeros over a part": zero_block,
    "noise over a part": randomize_block,
    "a byte more": insert_byte,
    "another text": replace_content,
    "deeply nested": nest_deeply,
    "another digit": change_digit,
}
"""The kinds of damage, by name, without flipped bits."""


def _overwrite(path: Path, rng: np.random.Generator, made: Callable[[int], bytes]) -> None:
    content = bytearray(path.read_bytes())
    length = int(rng.integers(1, min(4096, len(content)) + 1))
    begin = int(rng.integers(len(content) - length + 1))
    content[begin : begin + length] = made(length)
    path.write_bytes(content)
