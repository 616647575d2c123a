"""The page of an index in headless Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_index import CALIBRATION_OF_INDEX, LIMITS

from dml.inference.image_index import Index

pytest_plugins = ("served_index",)

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

HAND_OVER = """([kind, content]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(content)], "handed.png", { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # root may not use the sandbox, and pages made here need none
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_the_page_searches(browser: Any, address: str, index: Index, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "blob:")) else faults.append(request.url)
    )
    page.goto(address)
    error, scores = page.locator("#error"), page.locator("#results .score")

    # Playwright's wait_for_function evaluates strings in the page, which its Content-Security-Policy forbids
    wait_until = playwright.expect

    def wait_for_results(title: str, first: str, count: int) -> None:
        """Wait until the page shows a title, so many pictures, and the words of the first."""
        wait_until(page.locator("#title")).to_have_text(title)
        wait_until(page.locator("#results button")).to_have_count(count)
        wait_until(page.locator("#results .words").first).to_contain_text(first)
        wait_until(page.locator("body.busy")).to_have_count(0)

    def choose_label(label: str) -> None:
        page.fill("#label", label)
        page.locator("#label").press("Tab")

    wait_for_results("Images of the index", "cats00.png", 12)
    assert page.locator("#facts").text_content() == "12 images, 2 labels, model small_cnn"
    for image in page.locator("#results img").all():
        wait_until(image).to_have_js_property("naturalWidth", 24)

    page.locator("#results button").nth(7).click()  # search by an item
    wait_for_results("Most similar images", "dogs1.000", 12)
    assert page.url == f"{address}/#7"
    probability = 100 * CALIBRATION_OF_INDEX.probability(1.0)
    assert scores.first.text_content() == f"1.000 same {probability:.0f} %"
    assert "if 45 % of all pairs of images are of one class" in page.locator("#explanation").text_content()
    shown = [float(text.split()[0]) for text in scores.all_text_contents()]
    assert shown == sorted(shown, reverse=True)
    assert "From 0.980 on" in page.locator("#explanation").text_content()
    choose_label("cats")
    wait_for_results("Most similar images with the label cats", "cats0", 6)
    choose_label("birds")
    wait_until(error).to_have_text("label=birds: no image of the index has it; /api/labels lists all")
    choose_label("")
    wait_for_results("Most similar images", "dogs1.000", 12)
    wait_until(error).to_be_hidden()
    page.go_back()
    wait_for_results("Images of the index", "cats00.png", 12)

    page.set_input_files("#file", index.items.paths[2])
    wait_for_results("Most similar images", "cats1.000", 12)
    assert page.url == f"{address}/"
    assert page.locator("#query-name").text_content() == "02.png"
    for kind, position, label in (("drop", 9, "dogs"), ("paste", 1, "cats")):
        page.evaluate(HAND_OVER, [kind, [*Path(index.items.paths[position]).read_bytes()]])
        wait_for_results("Most similar images", f"{label}1.000", 12)
        assert page.locator("#query-name").text_content() == "handed.png"
    assert len(faults) == 1  # that of the unknown label
    assert "404" in faults[0]

    broken, large = tmp_path / "broken.png", tmp_path / "large.png"
    broken.write_bytes(b"none")
    large.write_bytes(bytes(LIMITS.max_image_bytes + 1))
    page.set_input_files("#file", broken)
    wait_until(error).to_contain_text("upload: cannot be decoded")
    page.set_input_files("#file", large)
    wait_until(error).to_contain_text("large.png: more than 200,000")
    page.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_every_width(browser: Any, address: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    page.goto(f"{address}/#7")
    page.locator("#results .score").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
