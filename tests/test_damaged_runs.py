"""Whatever happens to a file of a run: who reads numbers for a model gets what was written, all others one line."""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Here, Refused
from runs import train

from dml.evaluation.per_query import read_queries
from dml.evaluation.raw_features import FixedNeighbors
from dml.run.stored import read_checkpoint_run, read_stored_run
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.training.checkpoints import TrainingProgress, read_checkpoint

SHORT = [*SMALL, "trainer.max_steps=2", "trainer.val_check_interval=1", "evaluation.sheet=null", "model.heads=[H]"]
SHORT += ["evaluation.report={neighbors:3,map:false,seed:0}", "evaluation.fixed_neighbors=3"]
FLIPS = 12


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = [f"dataset.root={small_emoji}", *SHORT, "evaluation.metrics=[recall]"]
    folder = train(tmp_path_factory.mktemp("damaged") / "run", *run)
    (folder / "raw_id").write_text(json.loads((folder / "raw_metrics.json").read_text())["configuration"])
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def _checkpoint(name: str) -> Callable[[Path], Any]:
    def read(run: Path) -> Any:
        path = run / "checkpoints" / name
        return read_checkpoint(path), TrainingProgress.read(path), read_checkpoint_run(path)

    return read


NUMBERS: dict[str, Callable[[Path], Any]] = {
    "checkpoints/best.ckpt": _checkpoint("best.ckpt"),
    "checkpoints/last.ckpt": _checkpoint("last.ckpt"),
    "fixed_neighbors.npz": lambda run: FixedNeighbors.read(run / "fixed_neighbors.npz"),
}
"""For each file that has checksums the values that those who read it get from it."""

TABLES: dict[str, Callable[[Path], Any]] = {
    "metrics.json": lambda run: RunFolder(run).metrics(),
    "raw_metrics.json": lambda run: RunFolder(run).raw_metrics((run / "raw_id").read_text()),
    "splits.json": lambda run: RunFolder(run).splits(),
    "metrics.csv": lambda run: RunFolder(run).history(),
    "threshold_curves.json": lambda run: RunFolder(run).threshold_curves(),
    "per_query.parquet": lambda run: read_queries(run / "per_query.parquet"),
    ".hydra/config.yaml": lambda run: (read_stored_run(RunFolder(run)), RunFolder(run).config_text),
    ".hydra/overrides.yaml": lambda run: read_stored_run(RunFolder(run)),
    ".hydra/hydra.yaml": lambda run: RunFolder(run).choices,
}
"""The same for each file without checksums, which people may edit."""


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return bool(a == b) or (a != a and b != b)


def damages(content: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """One bit flipped, anywhere and in the first and last bytes; cut short; emptied; zeroed."""
    random_places = random.Random(seed).choices(range(8 * len(content)), k=FLIPS)
    ends = random.Random(seed).choices([*range(80 * 8), *range(8 * len(content) - 200 * 8, 8 * len(content))], k=FLIPS)
    for bit in (*random_places, *ends):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(flipped)
    for size in (0, 1, len(content) // 2, len(content) - 1):
        yield f"cut to {size}", content[:size]
    yield "zeroed", bytes(len(content))


@pytest.mark.parametrize("name", list(NUMBERS))
def test_damaged_numbers_are_read_as_they_were_or_refused_in_one_line(run: Path, name: str) -> None:
    path, lines = run / name, []
    content, expected = path.read_bytes(), NUMBERS[name](run)
    for damage, damaged in damages(content, seed=len(name)):
        path.write_bytes(damaged)
        try:
            assert same(NUMBERS[name](run), expected), f"{name}, {damage}: other values without a word"
        except InputError as error:
            lines.append(str(error))
    assert len(lines) >= FLIPS  # some bits of a zip archive hold nothing that anybody reads
    assert all(str(path) in line and "\n" not in line for line in lines)
    path.write_bytes(content)
    assert same(NUMBERS[name](run), expected)


@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_that_cannot_be_read_is_one_line(run: Path, name: str) -> None:
    path = run / name
    content = path.read_bytes()
    for _, damaged in damages(content, seed=1):
        path.write_bytes(damaged)
        with suppress(InputError):
            TABLES[name](run)
    for damaged in (b"\xff\xfe", b"[" * 5_000):
        path.write_bytes(damaged + content)
        with pytest.raises(InputError, match=rf"^{re.escape(str(path))}: .*; .*(delete |writes it anew)"):
            TABLES[name](run)


ROWS = ("3,0.5", "3,0.5,1,2,3,4,5,6,7,8,9", "3,a,0.5,0.5,0.5", "x,1", "\x00", "\udcff", '"3,1', "1,,,,")


def test_a_row_of_the_history_that_cannot_be_read_is_named(run: Path) -> None:
    (run / "metrics.json").unlink()
    history = (run / "metrics.csv").read_bytes()
    for row in ROWS:
        (run / "metrics.csv").write_bytes(history + f"{row}\r\n".encode(errors="surrogateescape"))
        with pytest.raises(InputError, match=r"metrics\.csv: damaged \(.*\); delete it, and "):
            RunFolder(run).history()


def flip(path: Path) -> None:
    """Flips a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("option", ["checkpoint", "training.init"])
def test_a_damaged_checkpoint_is_refused_and_the_other_one_named(
    refused: Refused, run: Path, tmp_path: Path, small_emoji: Path, option: str
) -> None:
    best, last = run / "checkpoints" / "best.ckpt", run / "checkpoints" / "last.ckpt"
    flip(best)
    new, command = [f"{option}={best}", f"hydra.run.dir={tmp_path / 'new'}"], "evaluate"
    if option == "training.init":
        new, command = [*SHORT, f"dataset.root={small_emoji}", *new], "train"
    line = refused(*new, command=command)
    assert line.startswith(f"error: checkpoint={best}: damaged, or no checkpoint (")
    assert f"checkpoint={last} tests the other one, training.init={last} begins a new run" in line


def test_a_run_with_a_damaged_checkpoint_is_not_resumed(refused: Refused, here: Here, run: Path) -> None:
    best, last = run / "checkpoints" / "best.ckpt", run / "checkpoints" / "last.ckpt"
    written = (run / ".hydra" / "config.yaml").read_bytes()
    flip(last)
    assert f"training.init={best} begins a new run" in refused(f"resume={run}", "trainer.max_steps=3")
    flip(last)
    flip(best)
    line = refused(f"resume={run}", "trainer.max_steps=3")
    assert line.endswith(f"without this file, resume={run} goes on with the run")
    assert (run / ".hydra" / "config.yaml").read_bytes() == written
    best.unlink()
    here("train", f"resume={run}", "trainer.max_steps=3")
    assert RunFolder(run).metrics()["step"] == 3


def test_unreadable_overrides_start_nothing_else(refused: Refused, here: Here, run: Path) -> None:
    path = run / ".hydra" / "overrides.yaml"
    path.write_text("[")
    line = refused(f"resume={run}")
    assert line.startswith(f"error: {path}: damaged (")
    assert f"delete {path.parent}, and resume={run} goes on" in line
    before = RunFolder(run).metrics()
    shutil.rmtree(path.parent)
    here("train", f"resume={run}")
    assert RunFolder(run).metrics() == before


def test_resuming_a_run_whose_metrics_are_gone_tests_it_again(here: Here, run: Path) -> None:
    folder = RunFolder(run)
    before = folder.metrics()
    folder.metrics_file.unlink()
    here("train", f"resume={run}")
    assert folder.metrics() == before
