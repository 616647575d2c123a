"""Miniature data sets in their official layout, and what can be wrong with them."""

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

Damage = Callable[[Path], None]

FAULTS = (
    "no_root",
    "no_list",
    "broken_line",
    "not_a_number",
    "fewer_images",
    "label_gap",
    "in_two_splits",
    "class_in_both",
    "missing_image",
    "unreadable_image",
)
FOUND_IN_AN_IMAGE = ("missing_image", "unreadable_image")


class Fault(NamedTuple):
    """What breaks a tree, and a regular expression of the line that says so."""

    damage: Damage
    message: str


@dataclass(frozen=True, eq=False)
class Tree:
    """A miniature of ``conf/dataset/<dataset>.yaml``.

    ``build`` writes it below a folder; ``counts`` are its own, of all splits and levels; ``faults`` go by `FAULTS`,
    None where the layout can't have one; ``arguments`` are the reader's beside root.
    """

    dataset: str
    build: Damage
    counts: dict[str, dict[str, int]]
    faults: dict[str, Fault | None]
    arguments: dict[str, Any] = field(default_factory=dict)


@lru_cache
def encoded(kind: str) -> bytes:
    """A JPEG of 12 x 8 pixels when it is upright."""
    turned = kind == "turned"
    image = Image.new("RGB" if turned else kind, (8, 12) if turned else (12, 8), 7)
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6  # orientation: the camera lay on its side
    file = BytesIO()
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


def write_images(folder: Path, paths: Iterable[str]) -> None:
    """An image at each path below ``folder``, of all the kinds that the data sets hold, in turn."""
    folders = set()
    for path, kind in zip(paths, cycle(("RGB", "L", "CMYK", "turned")), strict=False):
        file = folder / path
        if file.parent not in folders:
            file.parent.mkdir(parents=True, exist_ok=True)
            folders.add(file.parent)
        file.write_bytes(encoded(kind))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def remove(name: str) -> Damage:
    """A file or folder is gone; "." is the root itself."""

    def damage(root: Path) -> None:
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink()

    return damage


def move(old: str, new: str) -> Damage:
    def damage(root: Path) -> None:
        (root / old).rename(root / new)

    return damage


def dangle(name: str) -> Damage:
    """A file is a link that leads nowhere, for readers of folders, which would else not know of it."""

    def damage(root: Path) -> None:
        (root / name).unlink()
        (root / name).symlink_to(root / "elsewhere.jpg")

    return damage


def overwrite(name: str) -> Damage:
    """A file holds other bytes."""

    def damage(root: Path) -> None:
        assert (root / name).is_file()
        (root / name).write_bytes(b"\xff not what it should be")

    return damage


def edit(name: str, pattern: str, new: str) -> Damage:
    """The one place of a list that a regular expression matches, ^ and $ any line's ends, says ``new``."""

    def damage(root: Path) -> None:
        text, places = re.subn(pattern, new, (root / name).read_text(), flags=re.MULTILINE)
        assert places == 1, f"{pattern} is at {places} places of {name}"
        (root / name).write_text(text)

    return damage


def drop_last_line(name: str) -> Damage:
    def damage(root: Path) -> None:
        lines = (root / name).read_text().splitlines()
        write_lines(root / name, lines[:-1])

    return damage


def together(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for one in damages:
            one(root)

    return damage
