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


def test_the_map_answers(browser: Any, written: Path) -> None:
    errors = Errors()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors.watch(page)
    page.goto(written.as_uri())
    canvas, card, said = page.locator("#map canvas"), page.locator("#map .card"), page.locator("#shown")

    def drawn() -> Any:
        page.wait_for_timeout(50)
        return np.asarray(Image.open(BytesIO(canvas.screenshot())).convert("RGB"))

    page.locator("#map").scroll_into_view_if_needed()
    first = drawn()
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 10
    assert said.text_content() == "family"

    page.get_by_role("button", name="x", exact=True).click()
    assert said.text_content() == "x: 8 of 24"
    page.get_by_role("radio", name="nearest neighbor").check()
    assert said.text_content() == "nearest neighbor"
    page.fill("#find", "SQUARE")
    assert said.text_content() == "“SQUARE”: 4 of 24"
    page.fill("#find", "")

    page.get_by_label("Show pictures").check()
    page.wait_for_function("document.querySelector('#as-pictures').checked")
    pictures = drawn()
    assert (pictures != first).any()
    page.get_by_label("Show pictures").uncheck()

    # the first picture's place, as the page computes it; its class has a name that tries to be a tag
    data = page.evaluate("JSON.parse(document.getElementById('map-data').textContent)")
    box = canvas.bounding_box()
    scale = 0.94 * min(box["width"] / data["width"], box["height"] / data["height"])
    x = box["width"] / 2 + scale * (data["x"][0] - data["width"] / 2)
    y = box["height"] / 2 - scale * (data["y"][0] - data["height"] / 2)
    assert not card.is_visible()
    canvas.hover(position={"x": x, "y": y})
    assert card.is_visible()
    assert card.locator("strong").text_content() == HOSTILE

    canvas.focus()
    for key in ("+", "ArrowLeft", "ArrowUp", "-", "0"):
        page.keyboard.press(key)
    assert not card.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('#map canvas')).outlineStyle") == "solid"
    page.close()
    assert errors == []


def test_the_legend_is_that_of_the_colors_while_a_class_is_searched(browser: Any, written: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(written.as_uri())
    said, legend = page.locator("#shown"), page.locator("#map .classes button")
    data = page.evaluate("JSON.parse(document.getElementById('map-data').textContent)")
    page.fill("#find", "SQUARE")
    for coloring in reversed(data["colorings"]):
        page.get_by_role("radio", name=coloring["name"]).check()
        assert said.text_content() == "“SQUARE”: 4 of 24"
        assert legend.all_text_contents() == coloring["class_names"]
    legend.last.click()
    count = coloring["point_classes"].count(len(coloring["class_names"]) - 1)
    assert said.text_content() == f"{coloring['class_names'][-1]}: {count} of 24"
    assert page.input_value("#find") == ""
    page.close()


def test_a_tap_shows_the_card(browser: Any, written: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800}, has_touch=True)
    page.goto(written.as_uri())
    canvas = page.locator("#map canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for across in np.linspace(0.1, 0.9, 9):
        canvas.tap(position={"x": across * box["width"], "y": box["height"] / 2})
        if page.locator("#map .card").is_visible():
            break
    assert page.locator("#map .card").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
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
    for name in ("#map .classes i", ".frame"):
        shown = page.locator(name).first
        assert shown.evaluate("(each) => getComputedStyle(each).printColorAdjust") == "exact"
        assert shown.evaluate("(each) => each.checkVisibility()")
    assert not page.locator("nav").is_visible()
    # the picture of the map keeps its shape
    shape = "({ width, height, clientWidth, clientHeight }) => [width / height, clientWidth / clientHeight]"
    drawn, shown = page.locator("#map canvas").evaluate(shape)
    assert shown == pytest.approx(drawn, rel=0.02)
    assert not page.locator("#find").is_visible()
    page.close()


def test_keys_show_the_pictures_of_the_map(browser: Any, written: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(written.as_uri())
    canvas, card = page.locator("#map canvas"), page.locator("#map .card")

    def place_of_card() -> tuple[float, float]:
        """The column and row of the shown picture on the sheet of the map."""
        style = card.locator(".tile").get_attribute("style")
        return tuple(float(part.split(":")[1]) for part in style.rstrip("; ").split(";"))

    canvas.focus()
    page.keyboard.press("Enter")
    assert card.is_visible()
    seen = {place_of_card()}
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown"):
        for _ in range(6):
            page.keyboard.press(key)
            seen.add(place_of_card())
    assert len(seen) >= 8
    page.keyboard.press("Escape")
    assert not card.is_visible()

    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")  # moves the enlarged map
    assert not card.is_visible()
    page.keyboard.press("Shift+ArrowLeft")
    assert card.is_visible()
    inside = "(card) => card.getBoundingClientRect().top >= card.parentElement.getBoundingClientRect().top"
    for _ in range(12):
        page.keyboard.press("Shift+ArrowUp")
        assert card.evaluate(inside)
    page.close()
