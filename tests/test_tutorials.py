"""The tutorials run as they are, in a folder of their own, and store nothing but small pictures."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ONE_HEAD, ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
QUICK = ROOT / "docs" / "tutorials" / "search_photos.ipynb"
LARGEST_PICTURE = 60_000
"""Characters of a stored picture in base64."""

pytestmark = pytest.mark.pipeline


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a notebook's ``!dml`` find the command, and ``import dml`` the package, as an active environment does."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("OMP_NUM_THREADS")  # that of small jobs


def execute(book: Any, folder: Path) -> None:
    """Run a notebook in a folder, with a kernel of its own; a command that fails is an error, too."""
    from nbclient import NotebookClient

    for cell in book.cells:
        if cell.source.startswith("!"):
            cell.source += "\nassert _exit_code == 0"
    NotebookClient(book, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()


@pytest.mark.thorough
@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    execute(nbformat.read(path, as_version=4), tmp_path)


def test_the_cells_of_a_short_one_run_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in nbformat.read(QUICK, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    assert names["paths"][0][0].endswith(names["query"])


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_one_screen_without_results(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert book.cells[0].source.startswith("# ")
    assert len([cell for cell in book.cells if cell.cell_type == "code"]) <= 8
    for output in [output for cell in book.cells for output in cell.get("outputs", [])]:
        assert [*output.data] == ["image/png"]
        assert len(output.data["image/png"]) <= LARGEST_PICTURE


TRAINING = """
import os, signal, threading
import dml
words = {words}
dml.train(words, folder="run")
"""
INTERRUPT = """
threading.Timer(6, os.kill, (os.getpid(), signal.SIGINT)).start()
run = dml.train([*words, "trainer.max_steps=1000000", "trainer.val_check_interval=null"], folder="stopped", quiet=True)
assert not run.metrics
run
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("_environment")
def test_a_training_in_a_notebook_prints_lines_and_is_interrupted(small_emoji: Path, tmp_path: Path) -> None:
    words = [*ONE_HEAD, f"dataset.root={small_emoji}"]
    cells = [nbformat.v4.new_code_cell(text) for text in (TRAINING.format(words=words), INTERRUPT)]
    book = nbformat.v4.new_notebook(cells=cells)
    execute(book, tmp_path)
    finished, stopped = (cell.outputs for cell in book.cells)
    *lines, result = finished
    assert {line.get("name") for line in lines} == {"stdout"}
    printed = "".join(line.text for line in lines)
    assert printed.count("RankedListLoss, 6 steps") == 1
    assert "\x1b" not in printed  # nothing that moves a cursor
    assert "level0/recall@1" in result.data["text/html"]
    assert [output.output_type for output in stopped] == ["stream", "execute_result"]
    assert "by SIGINT" in stopped[0].text
    assert "run.resume()" in stopped[1].data["text/html"]
