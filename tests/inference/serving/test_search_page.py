"""The page of an index in headless Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NEEDS_CHROMIUM, expect
from served_index import CALIBRATION_OF_INDEX, LIMITS, THRESHOLD

from dml.inference.image_index import Index

pytest_plugins = ("chromium", "served_index")
pytestmark = NEEDS_CHROMIUM

HAND_OVER = """([kind, content]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(content)], "handed.png", { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""
KEEP_THE_FILE = """() => window.addEventListener("change", (event) => {
  event.stopPropagation();
  window.kept = new DataTransfer();
  window.kept.items.add(event.target.files[0]);
}, { capture: true, once: true })"""
DROP_THE_FILE = """() => document.body.dispatchEvent(
  new DragEvent("drop", { dataTransfer: window.kept, bubbles: true, cancelable: true }))"""


def test_the_page_searches(browser: Any, address: str, index: Index) -> None:
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
    wait_until = expect

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
    assert scores.first.text_content() == f"1.000 probably the same {probability:.0f} %"
    assert "if 45 % of all pairs of images are of one class." in page.locator("#explanation").text_content()
    shown = [float(text.split()[0]) for text in scores.all_text_contents()]
    assert shown == sorted(shown, reverse=True)
    explanation = page.locator("#explanation").text_content()
    assert 'from 0.997 on, where the share of wrong "same" among the nearest is 5 % on the validation' in explanation
    assert "Of the nearest test images that it marks, 6 % are wrong." in explanation
    is_same = [float(text.split()[0]) >= THRESHOLD for text in scores.all_text_contents()]
    assert 0 < sum(is_same) < len(is_same)
    assert ["same" in text for text in scores.all_text_contents()] == is_same
    assert page.locator("#results .mark").count() == page.locator("#results .picture.same").count() == sum(is_same)
    assert page.locator(".other").count() == 0  # what is unsure is never crossed out
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
    page.locator("#results button").nth(1).click()
    wait_until(page.locator("#query-name")).to_contain_text("s, ")  # of the index: its label and its name
    page.go_back()  # to the picture that was pasted, and to the one that was dropped before
    wait_until(page.locator("#query-name")).to_have_text("handed.png")
    wait_for_results("Most similar images", "cats1.000", 12)
    page.go_back()
    wait_for_results("Most similar images", "dogs1.000", 12)
    assert len(faults) == 1  # that of the unknown label
    assert "404" in faults[0]

    page.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_page()
    page.goto(address)
    expect(page.locator("#results button")).to_have_count(12)
    yield page
    page.close()


def wait_for_failure(page: Any, problem: str) -> None:
    """Wait until the page shows a problem, and no results of an earlier query."""
    expect(page.locator("#error")).to_contain_text(problem)
    expect(page.locator("#title")).to_have_text("No result")
    expect(page.locator("#results button")).to_have_count(0)
    expect(page.locator("body.busy")).to_have_count(0)
    assert page.locator("#explanation").text_content() == ""
    assert page.locator("#more").is_hidden()


def test_a_failed_query_leaves_no_results_of_another(page: Any, index: Index, tmp_path: Path) -> None:
    broken, large = tmp_path / "broken.png", tmp_path / "large.png"
    broken.write_bytes(b"none")
    large.write_bytes(bytes(LIMITS.max_image_bytes + 1))
    for path, problem in ((broken, "upload: cannot be decoded"), (large, "large.png: more than 200,000 bytes")):
        page.set_input_files("#file", index.items.paths[2])
        expect(page.locator("#results .score")).to_have_count(12)
        page.set_input_files("#file", path)
        wait_for_failure(page, problem)
    page.locator("#browse").click()
    expect(page.locator("#results button")).to_have_count(12)
    page.fill("#label", "birds")
    page.locator("#label").press("Tab")
    wait_for_failure(page, "label=birds")


def test_a_file_is_read_when_it_is_chosen(page: Any, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    shutil.copyfile(index.items.paths[2], path)
    page.set_input_files("#file", path)
    expect(page.locator("#results .words").first).to_contain_text("cats1.000")
    path.unlink()
    page.fill("#label", "dogs")
    page.locator("#label").press("Tab")
    expect(page.locator("#title")).to_have_text("Most similar images with the label dogs")
    assert page.locator("#error").is_hidden()

    # a file that is deleted between the choice and the search, which only a script can do in time
    path.write_bytes(b"photo")
    page.evaluate(KEEP_THE_FILE)
    page.set_input_files("#file", path)
    path.unlink()
    page.evaluate(DROP_THE_FILE)
    wait_for_failure(page, "photo.png: can't be read any more; choose it again.")


def test_the_page_fits_a_telephone(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800}, color_scheme="dark")
    page.goto(f"{address}/#7")
    page.locator("#results .score").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_the_focus_stays_with_the_results(page: Any) -> None:
    page.locator("#results button").nth(3).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#results .score")).to_have_count(12)
    expect(page.locator("#title")).to_be_focused()

    def answer(route: Any) -> None:
        """The first six images, or those after them."""
        route.fulfill(json=route.fetch(url=route.request.url.replace("limit=48", "limit=6")).json())

    page.route("**/api/items?*", answer)
    page.locator("#browse").click()
    expect(page.locator("#results button")).to_have_count(6)
    page.locator("#more").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#results button")).to_have_count(12)
    expect(page.locator("#results button").nth(6)).to_be_focused()


def test_an_emptied_label_filters_no_more(page: Any) -> None:
    page.fill("#label", "cats")
    page.locator("#label").press("Enter")
    expect(page.locator("#results button")).to_have_count(6)
    page.locator("#label").press("Escape")  # empties a search field, which keeps the focus
    expect(page.locator("#results button")).to_have_count(12)
    expect(page.locator("#title")).to_have_text("Images of the index")
