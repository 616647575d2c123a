"""The page of an index in headless Chromium: search by a part that a mouse or a finger draws on the query."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from chromium import NEEDS_CHROMIUM, playwright

from dml.inference.image_index import Index

pytest_plugins = ("chromium", "served_index")
pytestmark = NEEDS_CHROMIUM
SEARCH = "**/api/**box=*"


def open_query(browser: Any, address: str, **options: Any) -> tuple[Any, dict[str, float]]:
    """Open the page of item 7 -> the page, and the place of the query's picture."""
    page = browser.new_page(viewport={"width": 1000, "height": 800}, **options)
    page.goto(f"{address}/#7")
    playwright.expect(page.locator("#results .score")).to_have_count(12)
    playwright.expect(page.locator("#query")).to_have_js_property("naturalWidth", 24)
    return page, page.locator("#query").bounding_box()


def read_box(request: Any) -> list[float]:
    return [float(share) for share in parse_qs(urlsplit(request.value.url).query)["box"]]


def draw(page: Any, place: dict[str, float], *shares: float) -> None:
    """Draw a rectangle with the mouse, from one corner to the other, by shares of the picture."""
    corners = [
        (place["x"] + x * place["width"], place["y"] + y * place["height"])
        for x, y in zip(shares[::2], shares[1::2], strict=True)
    ]
    page.mouse.move(*corners[0])
    page.mouse.down()
    page.mouse.move(*corners[1], steps=3)
    page.mouse.up()


def scores(index: Index, location: str) -> list[str]:
    return [f"{score:.3f}" for score in index.search(location, 12)[0][0]]


def shown_scores(page: Any) -> list[str]:
    playwright.expect(page.locator("body.busy")).to_have_count(0)
    return [text.split()[0] for text in page.locator("#results .score").all_text_contents()]


def test_a_mouse_draws_a_part_and_a_key_takes_it_away(browser: Any, address: str, index: Index) -> None:
    page, place = open_query(browser, address)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    whole, part = page.locator("#whole"), page.locator(".part")
    assert whole.is_hidden()
    assert part.is_hidden()
    with page.expect_request(SEARCH) as request:
        draw(page, place, 0.75, 0.25, 0.25, 0.75)  # from the top right to the bottom left
    assert read_box(request) == pytest.approx([0.25, 0.25, 0.75, 0.75], abs=0.01)
    assert shown_scores(page) == scores(index, f"{index.items.paths[7]}#6,5,18,15")
    drawn = part.bounding_box()
    assert drawn["width"] == pytest.approx(place["width"] / 2, abs=2)
    assert drawn["y"] == pytest.approx(place["y"] + place["height"] / 4, abs=2)

    page.mouse.click(place["x"] + 5, place["y"] + 5)  # a click draws nothing
    assert part.bounding_box() == drawn
    page.fill("#label", "dogs")  # the part stays with other options
    with page.expect_request(SEARCH):
        page.locator("#label").press("Tab")
    page.fill("#label", "")
    playwright.expect(page.locator("#results .score")).to_have_count(12)

    whole.focus()
    page.keyboard.press("Enter")
    playwright.expect(whole).to_be_hidden()
    assert part.is_hidden()
    assert page.evaluate("document.activeElement.id") == "title"
    assert shown_scores(page) == scores(index, index.items.paths[7])
    assert faults == []
    page.close()


def test_a_part_of_an_upload_ends_with_it(browser: Any, address: str, index: Index) -> None:
    page, _ = open_query(browser, address)
    path = Path(index.items.paths[2])
    page.set_input_files("#file", path)
    playwright.expect(page.locator("#query-name")).to_have_text(path.name)
    assert shown_scores(page) == scores(index, str(path))
    place = page.locator("#query").bounding_box()
    with page.expect_request(SEARCH) as request:
        draw(page, place, 0.5, 0.5, 2, 2)  # beyond the picture
    assert request.value.method == "POST"
    assert read_box(request) == pytest.approx([0.5, 0.5, 1, 1], abs=0.01)
    assert shown_scores(page) == scores(index, f"{path}#12,10,24,20")
    page.set_input_files("#file", index.items.paths[3])
    playwright.expect(page.locator("#whole")).to_be_hidden()
    assert shown_scores(page) == scores(index, index.items.paths[3])
    page.close()


def test_a_finger_draws_a_part(browser: Any, address: str) -> None:
    page, place = open_query(browser, address, has_touch=True)
    session = page.context.new_cdp_session(page)
    x, y = place["x"], place["y"]
    with page.expect_request(SEARCH) as request:
        for kind, share in (("touchStart", 0.2), ("touchMove", 0.4), ("touchMove", 0.8), ("touchEnd", None)):
            points = [] if share is None else [{"x": x + share * place["width"], "y": y + share * place["height"]}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert read_box(request) == pytest.approx([0.2, 0.2, 0.8, 0.8], abs=0.02)
    assert page.evaluate("scrollY") == 0
    page.close()
