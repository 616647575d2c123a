"""What the pages name exists: modules and functions of dml, and the files that links lead to."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.ipynb")])
PAGES += [ROOT / "docs" / "llms.txt"]
NAME = re.compile(r"`(dml(?:\.\w+)+)`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ANCHOR_LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in ANCHOR_LINK.findall(page.read_text(encoding="utf-8")):
        if target.endswith(".md") or not target:
            assert anchor in list_anchors(page.parent / target if target else page), f"{target}#{anchor}"


def list_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_the_package_exist(page: Path) -> None:
    for name in NAME.findall(page.read_text(encoding="utf-8")):
        resolve(name)


def resolve(name: str) -> object:
    """Import the module of a dotted name and look the rest up in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(name)


def test_the_list_for_language_models_names_each_page_once() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    links = LINK.findall(text)
    assert text.startswith("# dml\n\n> ")
    assert len(links) == len({*links}) > 20
    assert len(links) == len(re.findall(r"^- \[[^]]+\]\([^)]+\): .+$", text, re.MULTILINE))
