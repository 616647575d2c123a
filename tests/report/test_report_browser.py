"""The pages in headless Chromium."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import NEEDS_CHROMIUM
from PIL import Image
from report_runs import HOSTILE, MakeRun

from dml.report.page import run_report
from dml.report.run import read_run

pytest_plugins = ("chromium", "report_runs")
pytestmark = NEEDS_CHROMIUM

LIGHT = {"light": (200, 256), "dark": (0, 60)}


@pytest.fixture
def written(make_run: MakeRun, tmp_path: Path) -> Path:
    (tmp_path / "run.html").write_text(run_report(read_run(make_run("a"))), encoding="utf-8")
    return tmp_path / "run.html"


class Errors(list[str]):
    """What a page complained of, and what it asked the network for."""

    def watch(self, page: Any) -> None:
        page.on("console", lambda message: self.append(message.text))
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("requestfailed", lambda request: self.append(request.url))
        page.on("dialog", lambda dialog: self.append(dialog.message))
        page.on("request", lambda request: None if request.url[:5] in ("file:", "data:") else self.append(request.url))


def test_pages_open_in_every_width_and_theme(browser: Any, written: Path) -> None:
    for width in (1280, 360):
        for scheme, (low, high) in LIGHT.items():
            errors = Errors()
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            errors.watch(page)
            page.goto(written.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            picture = np.asarray(Image.open(BytesIO(page.screenshot())).convert("L"))
            assert picture.shape[1] == width
            assert low <= np.median(picture) < high  # the paper's color
            assert picture.std() > 10
            page.close()
            assert errors == []


def test_the_map_names_the_class_of_a_dot(browser: Any, written: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(written.as_uri())
    page.locator("#map").scroll_into_view_if_needed()
    picture = Image.open(BytesIO(page.locator("#map svg").screenshot())).convert("RGB")
    assert len(picture.getcolors(1 << 20)) > 10
    titles = page.locator("#map svg title").all_text_contents()
    assert len(titles) == 6
    assert HOSTILE in titles
    page.close()


def test_paper_holds_all_columns_and_colors(browser: Any, written: Path) -> None:
    page = browser.new_page(viewport={"width": 703, "height": 900})  # A4 with margins of 12 mm
    page.goto(written.as_uri())
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.locator(".scroll").count()
    for width, room in page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((box) => [box.scrollWidth, box.clientWidth])"
    ):
        assert width <= room
    for name in ("#map .legend i", ".frame"):
        shown = page.locator(name).first
        assert shown.evaluate("(each) => getComputedStyle(each).printColorAdjust") == "exact"
        assert shown.evaluate("(each) => each.checkVisibility()")
    assert not page.locator("nav").is_visible()
    page.close()
