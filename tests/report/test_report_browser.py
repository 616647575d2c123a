"""The pages in headless Chromium."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from chromium import NEEDS_CHROMIUM
from PIL import Image
from report_runs import HOSTILE, MakeRun

from dml.report.page import run_report
from dml.report.run import read_run

pytest_plugins = ("chromium", "report_runs")
pytestmark = NEEDS_CHROMIUM

LIGHT = {"light": (200, 256), "dark": (0, 60)}


class Errors(list[str]):
    """What a page complained of, and what it asked the network for."""

    def watch(self, page: Any) -> None:
        page.on("console", lambda message: self.append(message.text))
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("requestfailed", lambda request: self.append(request.url))
        page.on("dialog", lambda dialog: self.append(dialog.message))
        page.on("request", lambda request: None if request.url[:5] in ("file:", "data:") else self.append(request.url))


def test_a_page_opens_in_every_width_and_theme_and_is_printed(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    written = tmp_path / "run.html"
    written.write_text(run_report(read_run(make_run("a"))), encoding="utf-8")
    for width, scheme in ((1280, "light"), (360, "dark")):
        low, high = LIGHT[scheme]
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
        titles = page.locator("#map svg title").all_text_contents()
        assert len(titles) == 6
        assert HOSTILE in titles
        assert errors == []
    page.set_viewport_size({"width": 703, "height": 900})  # A4 with margins of 12 mm
    page.emulate_media(media="print")
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
