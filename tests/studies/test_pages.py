"""The pages of studies: their numbers against plain loops, and the leaderboard against its results."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from dml.report.statistics import sum_by_class
from dml.runtime.errors import InputError
from dml.studies.pages import compute_difference, format_table
from dml.studies.results import Result, RowResult
from dml.studies.study import Cell, Training
from dml.studies.study_command import run_study


@pytest.mark.pipeline
def test_the_leaderboard_of_the_repository_is_that_of_its_results(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "leaderboard.parquet", docs)
    run_study(["leaderboard", "page", "--docs", str(docs), "--outputs", str(tmp_path / "none")])
    assert (docs / "leaderboard.md").read_text() == (ROOT / "docs" / "leaderboard.md").read_text(), "make leaderboard"
    assert (docs / "leaderboard.parquet").read_bytes() == (ROOT / "docs" / "leaderboard.parquet").read_bytes()


def test_results_are_small() -> None:
    assert all(path.stat().st_size < 1_000_000 for path in (ROOT / "docs").glob("*.parquet"))


def make_row(name: str, mean: float, seeds: int = 3, draw: int = 0) -> RowResult:
    """Make the row of some runs on 60 classes with 4 queries each."""
    rng = np.random.default_rng(draw)
    cell = Cell("emoji", name, Training("x"), after=("b=2",))
    runs = []
    for seed in range(seeds):
        sums = np.clip(rng.normal(4 * mean, 0.4, 60), 0, 4).round(4).tolist()
        facts = {"vector": "64 dimensions, cosine"}
        tested = {"counts": [4] * 60, "sums": {"recall@1": sums, "map@r": sums}, "metrics": {"level0/nmi": 0.8}}
        runs.append(Result(*cell.key, seed=seed, overrides="a=1 b=1", facts=facts, **tested))  # type: ignore[arg-type]
    return RowResult(cell, tuple(runs))


def test_differences_are_of_the_seeds_that_both_have() -> None:
    """Against a plain loop; the difference of a row to itself is 0 for sure."""
    row, other = make_row("rll", 0.5, seeds=3), make_row("nra", 0.45, seeds=2, draw=1)
    assert compute_difference(row, row, "map@r") == (0, 0, 0)
    difference, low, high = compute_difference(row, other, "map@r")
    means = np.array([np.mean([run.sums["map@r"] for run in one.runs[:2]], axis=0) for one in (row, other)])
    assert difference == pytest.approx(100 * (means[0] - means[1]).sum() / 240)
    rng = np.random.default_rng(5)
    draws = [100 * (means[0] - means[1])[rng.integers(60, size=60)].sum() / 240 for _ in range(5000)]
    assert (low, high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.3)


def test_columns_are_those_of_the_file() -> None:
    rows = [make_row("rll", 0.5), make_row("nra", 0.4, seeds=1)]
    columns = {
        "loss": "code",
        "chosen": "chosen",
        "recall@1": "seeds recall@1",
        "NMI": "mean level0/nmi",
        "": "difference map@r",
    }
    header, rule, first, second = format_table(columns, rows).splitlines()
    assert header == "| loss | chosen | recall@1 | NMI |  |"
    assert rule == "| --- | --- | ---: | ---: | ---: |"
    assert first.startswith("| `rll` | `a=1` | ")  # what a tested training replaces isn't chosen
    assert " ± " in first
    assert first.endswith(" | 80.0 |  |")
    assert second.startswith("| `nra` | `a=1` | ")
    assert " ± " not in second  # a single run has no interval
    assert " | 80.0 | −" in second
    for what, line in {
        "means map@r": "columns=means: must be one of name",
        "mean map@k": "columns.mean=map@k: must be one of",
        "interval level0/nmi": "columns.interval=level0/nmi: must be",
    }.items():
        with pytest.raises(InputError, match=f"^{line}"):
            format_table({"x": what}, rows)


def test_without_results_a_page_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_study(["leaderboard", "page", "--docs", str(tmp_path), "--outputs", str(tmp_path / "none")])
    file = tmp_path / "leaderboard.parquet"
    assert capsys.readouterr().err == f"error: {file}: holds no results; dml study leaderboard run makes them\n"
    assert not list(tmp_path.glob("*.md"))


def test_sums_by_class_skip_queries_without_a_value() -> None:
    labels = np.array([7, 3, 7, 3, 9])
    counts, sums = sum_by_class(labels, {"map@r": np.array([0.5, 1.0, 0.25, np.nan, 0.0])})
    assert (counts, sums) == ([1, 2, 1], {"map@r": [1.0, 0.75, 0.0]})
