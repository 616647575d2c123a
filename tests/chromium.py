"""Headless Chromium: a plugin that the tests of pages ask for.

PYTEST_DONT_REWRITE: they import it before they ask for it, which pytest would warn of; it asserts nothing.
"""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_CHROMIUM = [
    pytest.mark.pipeline,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        # root may not use the sandbox, and pages made here need none
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def expect(locator: Any) -> Any:
    """Return playwright's assertions of what a page holds, which wait for it."""
    from playwright import sync_api  # late: it takes half a second

    return sync_api.expect(locator)
