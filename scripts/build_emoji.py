"""Rebuilds the embedded data set, emoji drawn by six designers, from npm packages of pinned versions.

python scripts/build_emoji.py --output emoji.zip    # a minute on one core; needs npm and dml-retrieval[dev]

The archive holds ``table.csv``, a row an image, and ``images/<designer>/<code points>.webp``. A second run
writes the same bytes, as long as the versions of Pillow (its WebP encoder) and of resvg-py stay.
"""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import resvg_py
from PIL import Image

from dml.runtime.errors import InputError

SIDE, OVERSAMPLING, COLORS, MIN_DRAWINGS = 64, 2, 64, 4
LEFT_OUT_GROUPS = ("component", "flags")
EPOCH = (1980, 1, 1, 0, 0, 0)
COLUMNS = ("path", "emoji", "name", "subgroup", "group", "designer")


class Package(NamedTuple):
    """One version of an npm package."""

    name: str
    version: str


class Designer(NamedTuple):
    """An icon set, and the separator of the words in its icons' names."""

    name: str
    package: Package
    separator: str = "-"


EMOJIBASE = Package("emojibase-data", "17.0.0")
DESIGNERS = (
    Designer("noto", Package("@iconify-json/noto", "1.2.9")),
    Designer("noto_v1", Package("@iconify-json/noto-v1", "1.2.5")),
    Designer("twemoji", Package("@iconify-json/twemoji", "1.2.5")),
    Designer("emojione", Package("@iconify-json/emojione", "1.2.3")),
    Designer("fluent_flat", Package("@iconify-json/fluent-emoji-flat", "1.2.6")),
    Designer("fxemoji", Package("@iconify-json/fxemoji", "1.2.2"), separator=""),
)
PACKAGES = (EMOJIBASE, *(designer.package for designer in DESIGNERS))


class Emoji(NamedTuple):
    """One class: its code points (hexadecimal, joined by hyphens) and its place in Unicode's hierarchy."""

    code: str
    name: str
    subgroup: str
    group: str


class IconSet(NamedTuple):
    """A designer's icons and aliases, and `chars`: code points -> icon name, empty if the set has none."""

    designer: Designer
    icons: Mapping[str, Any]
    chars: Mapping[str, str]


class Drawing(NamedTuple):
    """The key of an image: one designer's drawing of one emoji."""

    emoji: str
    designer: str


def fetch(package: Package, folder: Path) -> None:
    """Unpack a package into ``folder/<name>``, the layout of a ``node_modules``."""
    specifier = "@".join(package)
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"npm: not found on PATH; install it, or give the unpacked {specifier} with --packages")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [npm, "pack", specifier, "--pack-destination", work, "--loglevel", "error"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if " code " not in line), "no message")
            raise InputError(f"npm pack {specifier}: exit code {done.returncode}, {reason}")
        (archive,) = Path(work).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        (folder / package.name).parent.mkdir(exist_ok=True)
        (Path(work) / "package").rename(folder / package.name)


def read_json(package: Package, folder: Path, path: str) -> Any:
    """Read the JSON file at ``path`` in an unpacked package."""
    file = folder / package.name / path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"--packages: no {file} of {'@'.join(package)}") from error


def code_points(hexcode: str) -> str:
    """Return code points in lower case, without the variation selector FE0F, which only some sources write."""
    return "-".join(point for point in hexcode.lower().split("-") if point != "fe0f")


def slug(name: str) -> str:
    """Return an emoji's name as icon sets spell it: "Man’s shoe" -> "mans-shoe"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("’", "")).strip("-")


def resolve(icons: Mapping[str, Any], name: str) -> str | None:
    """Follow aliases to the icon that is drawn; None if there is none, or an alias rotates or flips it.

    A flipped drawing is not how its designer drew the emoji, and the mirror image of another emoji would be a class.
    """
    while name not in icons["icons"]:
        alias = icons.get("aliases", {}).get(name)
        if alias is None or alias.keys() & {"rotate", "hFlip", "vFlip"}:
            return None
        name = alias["parent"]
    return name


def find_icon(emoji: Emoji, icon_set: IconSet, known_names: Iterable[str]) -> str | None:
    """Find the icon of ``emoji``: by code point if the set has them, else by the first name that fits.

    What other sets call the emoji, ``known_names``, goes before its Unicode name: names change over Unicode's
    versions, and the slug of "keycap: *" is the icon of an empty key.
    """
    if icon_set.chars:
        name = icon_set.chars.get(emoji.code)
        return resolve(icon_set.icons, name) if name else None
    names = [name.replace("-", icon_set.designer.separator) for name in (*known_names, slug(emoji.name))]
    return next(filter(None, (resolve(icon_set.icons, name) for name in names)), None)


def read_emoji(folder: Path) -> list[Emoji]:
    """Read all emoji in Unicode's order but flags and components; skin tones have no entries."""
    names = read_json(EMOJIBASE, folder, "meta/groups.json")
    entries = [entry for entry in read_json(EMOJIBASE, folder, "en/data.json") if "group" in entry]
    emoji = [
        Emoji(
            code=code_points(entry["hexcode"]),
            name=entry["label"],
            subgroup=names["subgroups"][str(entry["subgroup"])],
            group=names["groups"][str(entry["group"])],
        )
        for entry in sorted(entries, key=lambda entry: entry["order"])
    ]
    return [entry for entry in emoji if entry.group not in LEFT_OUT_GROUPS]


def read_icon_set(designer: Designer, folder: Path) -> IconSet:
    """Read a designer's icons from the unpacked package."""
    chars = read_json(designer.package, folder, "chars.json")
    by_code = {code_points(hexcode): name for hexcode, name in chars.items()}
    return IconSet(designer, read_json(designer.package, folder, "icons.json"), by_code)


def make_svg(icons: Mapping[str, Any], name: str) -> str:
    """Return an icon as an SVG document."""
    icon = {"left": 0, "top": 0, **{key: icons[key] for key in ("width", "height")}, **icons["icons"][name]}
    box = " ".join(str(icon[key]) for key in ("left", "top", "width", "height"))
    side = SIDE * OVERSAMPLING
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" width="{side}" height="{side}">{icon["body"]}</svg>'
    )


def draw(document: str) -> bytes:
    """Draw an SVG document on white as a WebP image of at most 64 colors.

    Few colors without loss take less room than a lossy WebP of the same error, and decode to the same pixels
    everywhere.
    """
    png = resvg_py.svg_to_bytes(svg_string=document, background="#ffffff", skip_system_fonts=True)
    with Image.open(io.BytesIO(png)) as image:
        picture = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    encoded = io.BytesIO()
    picture.quantize(COLORS, dither=Image.Dither.NONE).convert("RGB").save(encoded, "WEBP", lossless=True)
    return encoded.getvalue()


def draw_all(emoji: Sequence[Emoji], icon_sets: Sequence[IconSet]) -> dict[Drawing, bytes]:
    """Draw every emoji of every icon set that has it, in the order of ``emoji``, then of ``icon_sets``."""
    images = {}
    for entry in emoji:
        names = [icon_set.chars[entry.code] for icon_set in icon_sets if entry.code in icon_set.chars]
        for icon_set in icon_sets:
            if icon := find_icon(entry, icon_set, names):
                images[Drawing(entry.code, icon_set.designer.name)] = draw(make_svg(icon_set.icons, icon))
    return images


def drop_unusable(images: Mapping[Drawing, bytes], minimum: int = MIN_DRAWINGS) -> dict[Drawing, bytes]:
    """Drop images that two emoji share, as neither label is right, then emoji with too few images left.

    The encoding is lossless, so that equal pixels are equal bytes.
    """
    owners = defaultdict(set)
    for drawing, image in images.items():
        owners[image].add(drawing.emoji)
    unshared = {drawing: image for drawing, image in images.items() if len(owners[image]) == 1}
    drawings = Counter(drawing.emoji for drawing in unshared)
    return {drawing: image for drawing, image in unshared.items() if drawings[drawing.emoji] >= minimum}


def write_archive(output: Path, emoji: Sequence[Emoji], images: Mapping[Drawing, bytes]) -> None:
    """Write table and images, the same bytes for the same input; a failed run leaves no half ``output``."""
    emoji_by_code = {entry.code: entry for entry in emoji}
    paths = {drawing: f"images/{drawing.designer}/{drawing.emoji}.webp" for drawing in images}
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for drawing, path in paths.items():
        writer.writerow((path, *emoji_by_code[drawing.emoji], drawing.designer))
    partial = output.with_name(f"{output.name}.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        _add(archive, "table.csv", table.getvalue().encode(), zipfile.ZIP_DEFLATED)
        for drawing, path in paths.items():
            _add(archive, path, images[drawing], zipfile.ZIP_STORED)
    partial.replace(output)


def _add(archive: zipfile.ZipFile, path: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(path, EPOCH)
    entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same on every platform
    archive.writestr(entry, content, compression)


def build(output: Path, packages: Path) -> None:
    """Build the archive ``output`` from the npm packages unpacked in ``packages``, of the versions above."""
    for package in PACKAGES:
        if (version := read_json(package, packages, "package.json")["version"]) != package.version:
            raise InputError(f"{packages / package.name}: version {version}, the data set needs {package.version}")
    emoji = read_emoji(packages)
    drawn = draw_all(emoji, [read_icon_set(designer, packages) for designer in DESIGNERS])
    images = drop_unusable(drawn)
    write_archive(output, emoji, images)
    classes = len({drawing.emoji for drawing in images})
    size = output.stat().st_size / 1e6
    print(f"{output}: {len(images)} images of {len(drawn)} drawn, {classes} emoji, {size:.2f} MB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and build the archive -> the exit code."""
    parser = argparse.ArgumentParser(description="Rebuild the embedded emoji data set from npm packages.")
    parser.add_argument("--output", type=Path, required=True, metavar="ZIP", help="the archive to write")
    unpacked = "unpacked npm packages, as in a node_modules (DIR/@iconify-json/noto); else npm fetches them"
    parser.add_argument("--packages", type=Path, metavar="DIR", help=unpacked)
    options = parser.parse_args(arguments)
    if not options.output.parent.is_dir():
        parser.error(f"--output {options.output}: no folder {options.output.parent}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for package in [] if options.packages else PACKAGES:
                fetch(package, Path(folder))
            build(options.output, options.packages or Path(folder))
    except InputError as error:
        sys.stderr.write(f"build_emoji: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
