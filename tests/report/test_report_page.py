import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_runs import HOSTILE, MakeRun

from dml.data.images import read_image
from dml.report.page import run_report
from dml.report.run import read_run
from dml.report.sheets import CELL, Tiles
from dml.runtime.errors import InputError

pytest_plugins = ("report_runs",)

VOID = {"meta", "input", "br", "path", "circle", "use"}


class Page(HTMLParser):
    """The tags and the text of a page, and whether every tag is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(text)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture
def written(make_run: MakeRun) -> str:
    return run_report(read_run(make_run("a")))


def test_a_page_is_whole_html_that_needs_no_other_file(written: str) -> None:
    page = Page(written)
    names = [tag for tag, _ in page.tags]
    assert not {"link", "iframe", "object", "img", "script"} & set(names)
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "data", "poster"} & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#"), attributes
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = {(attributes.get("href") or "")[1:] for tag, attributes in page.tags if tag in ("a", "use")}
    assert anchors <= set(ids)
    assert names.count("h1") == names.count("main") == 1
    assert written.count("url(") == 1  # the sheet of pictures
    assert "default-src 'none'" in written
    tiles = [own for _, own in page.tags if own.get("class") == "tile" and own.get("role")]
    assert len(tiles) > 24
    assert all(own["aria-label"] and own["role"] == "img" for own in tiles)
    assert "<script>alert" not in written  # what users named is text
    assert "<b>bold" not in written
    assert any((attributes.get("aria-label") or "").startswith(HOSTILE) for _, attributes in page.tags)


def test_the_same_run_gives_the_same_page(make_run: MakeRun) -> None:
    folder = make_run("a")
    assert run_report(read_run(folder)) == run_report(read_run(folder))


def test_a_report_says_what_its_metrics_alone_do_not(make_run: MakeRun) -> None:
    assert 'role="note"' not in run_report(read_run(make_run("a")))
    run = read_run(make_run("b", selection="test"))
    before = dict.fromkeys(("raw/level0/recall@1", "raw/level0/map@r"), 0.999)
    facts = {"ended_early": "at step 300 of 1,500", "chosen_heads": "H"}
    settings = run.config.replace("name: shapes", "name: folder\n  root: /data/my <b>shapes") + "quick: true\n"
    told = replace(run, metrics={**run.metrics, **before, **facts}, config=settings)
    written = run_report(told)
    for words in ("rll on my <b>shapes", "quick: ", "worse: ", "checkpoint was chosen on the test split itself"):
        assert words in Page(written).text
    facts_shown = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", written))
    assert (facts_shown["ended early"], facts_shown["heads"]) == ("at step 300 of 1,500", "H")
    assert facts_shown["data set"] == "my &lt;b&gt;shapes"


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2.2."""
    shares = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colors_have_the_contrast_that_wcag_asks_for() -> None:
    style = (resources.files("dml.report") / "assets" / "report.css").read_text(encoding="utf-8")
    for theme in style.split(":root")[1:3]:  # light, dark
        light = {name: luminance(color) for name, color in re.findall(r"--([\w-]+): (#\w{6});", theme)}
        pairs = dict.fromkeys(("ink", "quiet", "accent", *(f"series-{i}" for i in range(1, 6))), ("page", 4.5))
        for name, (other, least) in (pairs | {"tick": ("same", 3)}).items():
            low, high = sorted((light[name], light[other]))
            assert (high + 0.05) / (low + 0.05) >= least, name


def test_a_report_of_little(make_run: MakeRun) -> None:
    run = read_run(make_run("a"))
    unscored = {name: np.full(24, np.nan) for name in run.queries.metrics}
    bare = replace(run.queries, positions=None, metrics=unscored, names=(), made_with={})
    text = run_report(replace(run, history=(), queries=bare, choices={}))
    assert re.findall("<h2>(.*)</h2>", text) == ["Metrics", "Settings"]
    assert re.findall("<summary>(.*)</summary>", text) == ["What the metrics are", "Configuration"]


def test_each_picture_is_on_the_sheet(images: Path) -> None:
    tiles = Tiles()
    paths = [str(images / f"{i:02}.png") for i in range(24)]
    for path in paths:
        tiles.place(path)
    kind, _, content = tiles.encode_sheet(read_image).partition(";base64,")
    assert kind == "data:image/webp"
    sheet = np.asarray(Image.open(BytesIO(b64decode(content))).convert("RGB")).astype(int)
    for path in paths:
        column, row = tiles.place(path)
        cell = sheet[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        middle = cell[CELL // 2 - 4 : CELL // 2 + 4, CELL // 2 - 4 : CELL // 2 + 4].mean(axis=(0, 1))
        with Image.open(path) as picture:
            assert middle == pytest.approx(picture.getpixel((5, 5)), abs=12)


def test_a_picture_that_is_gone(make_run: MakeRun, tmp_path: Path) -> None:
    run = read_run(make_run("a"))
    paths = run.queries.paths.copy()
    paths[0] = str(tmp_path / "gone.png")
    with pytest.raises(InputError, match=r"gone\.png"):
        run_report(replace(run, queries=replace(run.queries, paths=paths)))
