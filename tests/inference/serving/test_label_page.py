"""The page of dml label in headless Chromium, and what its API refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import NEEDS_CHROMIUM, playwright
from small_embedders import make_model, write_photos

from dml.inference.labeling import Labeling
from dml.inference.serving.http_server import open_listener, running_server
from dml.inference.serving.label_page import create_label_app

pytest_plugins = ("chromium",)
pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def labeling(tmp_path: Path) -> Labeling:
    paths = sorted(map(str, write_photos(tmp_path, 12).rglob("*.png")))
    return Labeling(tmp_path / "labels.csv", paths, make_model().embed(paths))


@pytest.fixture
def address(labeling: Labeling) -> Iterator[str]:
    with (
        open_listener("127.0.0.1", 0) as listener,
        running_server(create_label_app(labeling, ["127.0.0.1"]), listener),
    ):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("width", [1200, 360])
def test_keys_and_buttons_answer(browser: Any, address: str, labeling: Labeling, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 740})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    facts, first = page.locator("#facts"), page.locator("#first")

    def wait_for(number: int) -> None:
        playwright.expect(facts).to_contain_text(f"Answers: {number}.")

    wait_for(0)
    playwright.expect(first).to_have_js_property("naturalWidth", 24)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= 740  # both images and the buttons at once
    for number, key in enumerate("yns", 1):
        page.keyboard.press(key)
        wait_for(number)
    shown = first.get_attribute("src")
    page.locator("#not").click()
    wait_for(4)
    page.keyboard.press("u")
    wait_for(3)
    assert first.get_attribute("src") == shown
    lines = [json.loads(line) for line in labeling.log.read_text().splitlines()]
    assert [line.get("same", "undo") for line in lines] == [True, False, None, False, "undo"]
    for number in range(4, 100):
        page.keyboard.press("y")
        playwright.expect(facts).not_to_contain_text(f"Answers: {number - 1}.")
        if "Nothing is left" in facts.text_content():
            break
    playwright.expect(page.locator("#same")).to_be_disabled()
    assert labeling.ask()["first"] is None
    labeling.write_labels()
    page.reload()
    playwright.expect(facts).to_contain_text("Labeled images: 12. Classes: 2.")
    answer = page.request.get(f"{address}/api/images/12")
    assert (answer.status, answer.json()) == (422, {"error": "image: Input should be less than 12"})
    Path(labeling.paths[0]).unlink()
    assert page.request.get(f"{address}/api/images/0").status == 410
    assert page.request.post(f"{address}/api/answers", data={"answer": True}).status == 422
    assert not faults
    page.close()


def test_features_of_one_seed_give_one_first_question(labeling: Labeling) -> None:
    again = Labeling(labeling.output, labeling.paths, make_model().embed([*labeling.paths]).astype(np.float32))
    assert again.ask() == labeling.ask()
