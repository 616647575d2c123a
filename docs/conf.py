"""Sphinx builds the site of these pages and the API reference: make docs."""

import json
import re
from logging import WARNING, getLogger
from pathlib import Path
from shutil import copyfile

from sphinx.application import Sphinx
from sphinx.util import logging

project = "dml"
author = "The dml authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
html_theme = "furo"
html_title = "dml"
html_extra_path = ["llms.txt"]
exclude_patterns = ["images"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False
suppress_warnings = ["myst.strikethrough"]

getLogger("faiss.loader").setLevel(WARNING)  # it logs each build of FAISS that it looks for

DOCS = Path(__file__).resolve().parent
REPOSITORY_LINK = re.compile(r"\[([^]]+)\]\((\.\./[^)#]+)\)")
"""A link from a page to a file of the repository, which the site does not hold."""


def show_notebook(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn a notebook into a page: its text, its code, and the pictures that are stored in it."""
    if Path(app.env.doc2path(name)).suffix != ".ipynb":
        return
    parts = []
    for cell in json.loads(source[0])["cells"]:
        text = "".join(cell["source"])
        language = "console" if text.startswith("!") else "python"
        parts.append(text if cell["cell_type"] == "markdown" else f"```{language}\n{text}\n```")
        pictures = [output["data"]["image/png"] for output in cell.get("outputs", [])]
        parts += [f"![What the cell shows](data:image/png;base64,{''.join(picture.split())})" for picture in pictures]
    source[0] = "\n\n".join(parts)


def check_repository_links(_app: Sphinx, name: str, source: list[str]) -> None:
    """Turn links to files of the repository into their paths, and warn of those that lead nowhere."""

    def path_of(link: re.Match[str]) -> str:
        path = (DOCS / Path(name).parent / link[2]).resolve()
        if path.is_relative_to(DOCS):  # another page
            return link[0]
        if not path.exists():
            logging.getLogger(__name__).warning("%s: no file %s", name, link[2], location=name)
        shown = link[2].replace("../", "")
        return f"`{shown}`" if link[1] in (shown, Path(shown).name) else f"{link[1]} (`{shown}`)"

    source[0] = REPOSITORY_LINK.sub(path_of, source[0])


def copy_sources(app: Sphinx, error: Exception | None) -> None:
    """Copy each page's source beside the page: llms.txt names the sources, and notebooks are there to run."""
    if error is None:
        for name in app.env.found_docs:
            source = Path(app.env.doc2path(name))
            copyfile(source, Path(app.outdir) / source.relative_to(DOCS))


def setup(app: Sphinx) -> None:
    """Register with Sphinx: the change of notebooks, then the check of links, and the copies at the end."""
    app.connect("source-read", show_notebook)
    app.connect("source-read", check_repository_links)
    app.connect("build-finished", copy_sources)
