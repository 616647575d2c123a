"""The examples of a user's own parts, from the docs, as they stand there."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ONE_HEAD, ROOT
from PIL import Image
from runs import last

from dml.__main__ import dispatch

pytestmark = pytest.mark.pipeline

TINY = [value for value in ONE_HEAD if not value.startswith(("sampler.", "model", "trainer.", "checkpoints.every"))]
TINY += ["trainer.max_steps=2"]
"""Overrides that make a run take seconds; data, batches and the network are those of the page, or given here."""
SMALL_NETWORK = "model=small_cnn"
SMALL_BATCHES = ["sampler.classes_per_batch=4", "sampler.images_per_class=2"]


def read_section(page: str, section: str) -> tuple[dict[str, str], list[str]]:
    """Return the files of a section of a page of docs by their names, and the arguments of its first command."""
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    [body] = [text for text in sections if text.startswith(f"{section}\n")]
    files = dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL))
    command = re.search(r"^\$ dml (train .*)$", body, flags=re.MULTILINE)
    assert command is not None
    return files, shlex.split(command[1])


@pytest.mark.parametrize(
    ("page", "section", "settings"),
    [
        ("installing.md", "Your own configurations and losses", [SMALL_NETWORK, *SMALL_BATCHES]),
        ("extending.md", "A backbone", SMALL_BATCHES),
        ("extending.md", "A head", SMALL_BATCHES),
        ("extending.md", "A sampler", [SMALL_NETWORK]),
        ("extending.md", "A reader", [SMALL_NETWORK, *SMALL_BATCHES]),
    ],
)
def test_an_example_of_a_part_of_ones_own_trains(
    small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, section: str, settings: list[str]
) -> None:
    files, command = read_section(page, section)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    if section == "A reader":
        draw_images(tmp_path / "images")
    else:
        settings = [*settings, f"dataset.root={small_emoji}"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    dispatch([*command, *TINY, *settings, f"hydra.run.dir={tmp_path / 'run'}"])

    checkpoint = last(tmp_path / "run")
    assert checkpoint["global_step"] == 2
    [module] = [Path(name).stem for name in files if name.endswith(".py")]
    assert module in str(checkpoint["run"])  # it is the example that was trained


def draw_images(folder: Path) -> None:
    """Write four images of each of 15 classes, one folder for each class."""
    generator = np.random.default_rng(0)
    for label in range(15):
        (folder / f"animal{label:02}").mkdir(parents=True)
        for number in range(4):
            pixels: Any = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"animal{label:02}" / f"{number}.png")
