import csv
import importlib.util
import io
import json
import sys
import zipfile
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT
from PIL import Image

ASSETS = Path(str(resources.files("dml.data") / "assets"))
SCRIPT = ROOT / "scripts" / "build_emoji.py"
DESIGNERS = {"noto", "noto_v1", "twemoji", "emojione", "fluent_flat", "fxemoji"}


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    with zipfile.ZipFile(ASSETS / "emoji.zip") as archive, archive.open("table.csv") as file:
        return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))


class TestShippedFile:
    def test_its_counts_are_the_published_ones(self, table: list[dict[str, str]]) -> None:
        images = Counter(row["emoji"] for row in table)
        assert len(table) == 6063
        assert len(images) == 1146
        assert Counter(images.values()) == {4: 126, 5: 561, 6: 459}
        assert len({row["subgroup"] for row in table}) == 95
        assert len({row["group"] for row in table}) == 8
        assert {row["designer"] for row in table} == DESIGNERS

    def test_flags_and_skin_tones_are_left_out(self, table: list[dict[str, str]]) -> None:
        tones = {"1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff"}
        assert not {row["group"] for row in table} & {"flags", "component"}
        assert not any(tones & set(row["emoji"].split("-")) for row in table)

    def test_the_archive_holds_the_images_of_the_table_and_no_others(self, table: list[dict[str, str]]) -> None:
        with zipfile.ZipFile(ASSETS / "emoji.zip") as archive:
            assert archive.namelist() == ["table.csv", *(row["path"] for row in table)]
        for row in table:
            assert row["path"] == f"images/{row['designer']}/{row['emoji']}.webp"

    @pytest.mark.data_sets
    def test_images_decode_and_none_is_of_two_classes(self, table: list[dict[str, str]]) -> None:
        owners = defaultdict(set)
        with zipfile.ZipFile(ASSETS / "emoji.zip") as archive:
            for row in table:
                with Image.open(io.BytesIO(archive.read(row["path"]))) as image:
                    assert (image.mode, image.size) == ("RGB", (64, 64)), row["path"]
                    owners[image.tobytes()].add(row["emoji"])
        assert [shared for shared in owners.values() if len(shared) > 1] == []


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    pytest.importorskip("resvg_py", reason="the extra dml-retrieval[emoji] is not installed")
    spec = importlib.util.spec_from_file_location("build_emoji", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


SQUARE = '<path fill="#f00" d="M0 0h10v10H0z"/>'
ICONS: dict[str, Any] = {
    "width": 10,
    "height": 10,
    "icons": {"bear": {"body": SQUARE}, "wide": {"body": SQUARE, "width": 20, "left": -5}},
    "aliases": {
        "bear-face": {"parent": "bear"},
        "teddy": {"parent": "bear-face"},
        "flipped": {"parent": "bear", "hFlip": True},
        "mirrored": {"parent": "bear", "vFlip": True},
        "rotated": {"parent": "bear", "rotate": 1},
        "of-flipped": {"parent": "flipped"},
    },
}


@pytest.mark.parametrize("name", ["flipped", "mirrored", "rotated", "of-flipped", "unknown"])
def test_rotated_and_flipped_aliases_are_no_icons(builder: ModuleType, name: str) -> None:
    assert builder.resolve(ICONS, name) is None


def test_shared_images_go_first_then_emoji_with_too_few_left(builder: ModuleType) -> None:
    drawn = {
        ("bear", "a"): b"1",
        ("bear", "b"): b"2",
        ("bear", "c"): b"shared",
        ("panda", "a"): b"3",
        ("panda", "c"): b"shared",
        ("mouse", "a"): b"4",
        ("mouse", "b"): b"4",
    }
    images = {builder.Drawing(*key): image for key, image in drawn.items()}
    kept = builder.drop_unusable(images, minimum=2)
    # both drawings of the mouse are alike, but their label is right
    assert list(kept) == [("bear", "a"), ("bear", "b"), ("mouse", "a"), ("mouse", "b")]


def test_a_picture_is_drawn_on_white_and_not_stretched(builder: ModuleType) -> None:
    with Image.open(io.BytesIO(builder.draw(builder.make_svg(ICONS, "wide")))) as image:
        assert (image.mode, image.size) == ("RGB", (64, 64))
        # the 20 x 10 of the viewBox are 64 x 32 pixels: the square is 32 x 32 of them, in the middle
        assert image.getpixel((32, 32)) == (255, 0, 0)
        assert [image.getpixel(xy) for xy in ((4, 32), (60, 32), (32, 4), (32, 60))] == [(255, 255, 255)] * 4


def test_the_same_input_gives_the_same_archive(builder: ModuleType, tmp_path: Path) -> None:
    emoji = [builder.Emoji("1f43b", "bear, brown", "mammal", "animals")]
    images = {builder.Drawing("1f43b", "noto"): b"picture"}
    for name in ("first.zip", "second.zip"):
        builder.write_archive(tmp_path / name, emoji, images)
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "first.zip") as archive:
        assert archive.read("table.csv").decode().splitlines() == [
            "path,emoji,name,subgroup,group,designer",
            'images/noto/1f43b.webp,1f43b,"bear, brown",mammal,animals,noto',
        ]
        assert archive.read("images/noto/1f43b.webp") == b"picture"


@pytest.fixture
def packages(builder: ModuleType, tmp_path: Path) -> Path:
    """The npm packages in small: a bear and a flag that all draw but one, a coral that one draws."""
    folder = tmp_path / "packages"
    names = {"groups": {"0": "animals", "1": "flags"}, "subgroups": {"0": "mammal", "1": "country"}}
    entries = [
        {"hexcode": "1F1E6", "label": "regional indicator A"},
        {"hexcode": "1F3F4", "label": "black flag", "order": 3, "group": 1, "subgroup": 1},
        {"hexcode": "1FAB8", "label": "coral", "order": 2, "group": 0, "subgroup": 0},
        {"hexcode": "1F43B-FE0F", "label": "brown bear", "order": 1, "group": 0, "subgroup": 0},
    ]
    files: dict[str, dict[str, Any]] = {builder.EMOJIBASE.name: {"meta/groups.json": names, "en/data.json": entries}}
    for place, designer in enumerate(builder.DESIGNERS):
        both = [name.replace("-", designer.separator) for name in ("brown-bear", "black-flag")]
        drawings = {0: [*both, "coral"], 3: []}.get(place, both)
        # the names begin with a color, so that no two icons look alike
        icons = {name: {"body": f'<circle r="{9 + place}" fill="{name[:5]}"/>'} for name in drawings}
        chars = {"1f43b": "brown-bear", "1fab8": "coral", "1f3f4": "black-flag"} if place == 0 else {}
        files[designer.package.name] = {
            "icons.json": {"width": 30, "height": 30, "icons": icons},
            "chars.json": chars,
        }
    for package in builder.PACKAGES:
        for path, content in {**files[package.name], "package.json": {"version": package.version}}.items():
            file = folder / package.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content))
    return folder


def test_build_leaves_out_flags_and_rare_emoji_and_keeps_the_order_of_designers(
    builder: ModuleType, packages: Path, tmp_path: Path
) -> None:
    output = tmp_path / "emoji.zip"
    assert builder.main(["--output", str(output), "--packages", str(packages)]) == 0
    with zipfile.ZipFile(output) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("table.csv").decode())))
    drew = ["noto", "noto_v1", "twemoji", "fluent_flat", "fxemoji"]
    assert [row["path"] for row in rows] == [f"images/{designer}/1f43b.webp" for designer in drew]
    assert {(row["name"], row["subgroup"], row["group"]) for row in rows} == {("brown bear", "mammal", "animals")}
