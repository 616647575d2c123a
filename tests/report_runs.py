"""A small run that reports are made of, for the tests of the report: a plugin that each of them asks for.

PYTEST_DONT_REWRITE: they import it before they ask for it, which pytest would warn of; it asserts nothing.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml.evaluation import evaluate, rank_queries
from dml.evaluation.per_query import QueryTable, write_queries

MakeRun = Callable[..., Path]

HOSTILE = "<script>alert('class')</script>\"&"
"""The name of a class, that of the first picture."""
CONFIG = """\
dataset:
  name: shapes
loss:
  _target_: dml.losses.rll.RankedListLoss
  margin: {margin}
model:
  backbone:
    name: tiny
  heads:
  - L
  - H
seed: {seed}
note: '{note}'
"""


def query_table(images: Path, seed: int = 0, noise: float = 0.9) -> QueryTable:
    """6 classes of 4 pictures, in 3 super-classes, with random embeddings around the classes' middles."""
    rng = np.random.default_rng(seed)
    fine = np.repeat(np.arange(6), 4)
    labels = np.stack([fine, fine // 2], axis=1)
    embeddings = np.random.default_rng(9).normal(size=(6, 5))[fine] + noise * rng.normal(size=(24, 5))
    return QueryTable.from_rankings(
        rank_queries(embeddings, labels, neighbors=5),
        [str(images / f"{i:02}.png") for i in range(24)],
        labels,
        levels=("shape", "family"),
        names=(
            (HOSTILE, "circle", "square", "star", "cross", "a name that is much longer than others"),
            ("x", "y", "z"),
        ),
        positions=embeddings[:, :2].astype(np.float32),
        made_with={"torch": "2.0", "platform": "<none>"},
    )


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures in plain colors, of several sizes."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(24):
        color = (40 * (i // 4), 255 - 60 * (i % 4), 10 * i)
        Image.new("RGB", (30 + i, 40), color).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture
def make_run(images: Path, tmp_path: Path) -> MakeRun:
    """Makes a run's folder as a test would leave it behind."""

    def make(name: str, seed: int = 0, *, selection: str = "val", folder: Path = images) -> Path:
        run = tmp_path / name
        (run / ".hydra").mkdir(parents=True)
        table = query_table(folder, seed)
        rng = np.random.default_rng(seed)
        metrics = {name: float(np.nanmean(values)) for name, values in table.metrics.items()}
        metrics |= {"level0/nmi": 0.5 + seed / 100, "level0/queries_without_positives": 0.0}
        own = evaluate(rng.normal(size=(24, 3)), table.labels, metrics=("recall",))
        metrics |= {
            f"{prefix}{name}": value for prefix in ("raw/", "heads/L/", "heads/H/") for name, value in own.items()
        }
        facts = {"epoch": 2, "step": 300, "split": "test", "selection": selection, "images_skipped": 1}
        (run / "metrics.json").write_text(json.dumps(metrics | facts))
        config = CONFIG.format(seed=seed, margin=0.4 + seed, note="</pre><b>bold</b>")
        (run / ".hydra/config.yaml").write_text(config)
        (run / ".hydra/hydra.yaml").write_text("hydra: {runtime: {choices: {loss: rll, model: null, hydra/help: x}}}\n")
        lines = ["step,loss,loss/L,val/level0/recall@1,val/level1/recall@1"]
        lines += [f"{step},{1 / step},{0.5 / step},," for step in range(10, 300, 10)]
        lines += ["300,0.1,0.05,0.75,0.9"]
        (run / "metrics.csv").write_text("\n".join(lines) + "\n")
        write_queries(run / "per_query.parquet", table)
        return run

    return make


@pytest.fixture
def table(images: Path) -> QueryTable:
    """The queries of such a run."""
    return query_table(images)


@pytest.fixture
def without_ap(table: QueryTable) -> QueryTable:
    """The queries of a run that measured recall alone."""
    return replace(table, metrics={name: values for name, values in table.metrics.items() if "recall" in name})
