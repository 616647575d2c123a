"""The pages of studies: their numbers against plain loops, and the pages of this repository against its results."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from dml.report.statistics import ClassSums, sum_by_class
from dml.runtime.errors import InputError
from dml.studies.pages import compare_pairs, compute_difference, compute_p_values, format_table
from dml.studies.results import Result, RowResult, read_results, store_results
from dml.studies.study import Cell, Training
from dml.studies.study_command import run_study

STUDIES = ["ablation", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("claims", "leaderboard"))]
STUDIES += [pytest.param(name, marks=pytest.mark.thorough) for name in ("protocol", "robustness")]


@pytest.mark.pipeline
@pytest.mark.parametrize("name", STUDIES)
def test_a_page_of_the_repository_is_that_of_its_results(name: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for file in (name, "leaderboard"):
        shutil.copy(ROOT / "docs" / f"{file}.parquet", docs)
    run_study([name, "page", "--docs", str(docs), "--outputs", str(tmp_path / "none")])
    assert (docs / f"{name}.md").read_text() == (ROOT / "docs" / f"{name}.md").read_text(), f"dml study {name} page"
    assert (docs / f"{name}.parquet").read_bytes() == (ROOT / "docs" / f"{name}.parquet").read_bytes()


def test_results_are_small() -> None:
    assert all(path.stat().st_size < 1_000_000 for path in (ROOT / "docs").glob("*.parquet"))


def make_row(name: str, mean: float, seeds: int = 3, draw: int = 0) -> RowResult:
    """Make the row of some runs on 60 classes with 4 queries each."""
    rng = np.random.default_rng(draw)
    cell = Cell("emoji", name, Training("x"), overrides=(f"loss={name}",), after=("b=2",))
    runs = []
    for seed in range(seeds):
        sums = np.clip(rng.normal(4 * mean, 0.4, 60), 0, 4).round(4).tolist()
        facts = {"vector": "64 dimensions, cosine"}
        tested = {"counts": [4] * 60, "sums": {"recall@1": sums, "map@r": sums}, "metrics": {"level0/nmi": 0.8}}
        runs.append(Result(*cell.key, seed=seed, overrides="a=1 b=1", facts=facts, **tested))  # type: ignore[arg-type]
    return RowResult(cell, tuple(runs))


def test_pairs_are_compared_by_classes() -> None:
    """The p-values are those of a plain loop over draws of the classes, times Holm's factors."""
    rows = [make_row("nra", 0.5, draw=0), make_row("rll", 0.505, draw=1), make_row("triplet", 0.3, draw=2)]
    tests = {row.cell.row: row.tested for row in rows}
    p_values = compute_p_values(tests, "map@r")
    assert p_values["nra", "rll"] > 0.05
    assert max(p_values["nra", "triplet"], p_values["rll", "triplet"]) < 0.001
    rng = np.random.default_rng(1)
    differences = tests["nra"].mean_sums("map@r") - tests["rll"].mean_sums("map@r")
    draws = np.array([differences[rng.integers(60, size=60)].sum() / 240 for _ in range(10_000)])
    expected = 2 * min((draws <= 0).mean(), (draws >= 0).mean())  # the largest of three: its factor is 1
    assert p_values["nra", "rll"] == pytest.approx(expected, abs=0.03)
    matrix = compare_pairs(rows, "map@r")
    assert [pair for pair, text in matrix.items() if text.startswith("**")] == [("nra", "triplet"), ("rll", "triplet")]
    with pytest.raises(InputError, match="tested on different classes"):
        compute_p_values({**tests, "rll": ClassSums([3] * 60, tests["rll"].sums)}, "map@r")


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
        "changed": "changed",
        "chosen": "chosen",
        "sd": "deviation recall@1",
        "NMI": "mean level0/nmi",
        "": "difference map@r",
    }
    header, rule, first, second = format_table(columns, rows).splitlines()
    assert header == "| loss | changed | chosen | sd | NMI |  |"
    assert rule == "| --- | --- | --- | ---: | ---: | ---: |"
    assert first.startswith("| `rll` | `loss=rll` | `a=1` | ")  # what a tested training replaces isn't chosen
    assert first.endswith(" | 80.0 |  |")
    assert second.startswith("| `nra` | `loss=nra` | `a=1` | – | 80.0 | −")  # a single run has no deviation
    for what, line in {
        "means map@r": "columns: means map@r: no such kind; nearest: mean",
        "mean map@k": "columns: mean map@k: the runs have no such metric; nearest: map@r",
        "interval level0/nmi": "columns: interval level0/nmi: the runs have no such metric; nearest: ",
    }.items():
        with pytest.raises(InputError, match=f"^{line}"):
            format_table({"x": what}, rows)


@pytest.mark.pipeline
def test_robustness_compares_with_the_leaderboard(tmp_path: Path) -> None:
    clean = [one for one in read_results(ROOT / "docs" / "leaderboard.parquet") if one.condition == "heads"]
    clean = [one for one in clean if one.dataset == "emoji" and one.row in ("rll", "circle")]
    faulty = [one for one in read_results(ROOT / "docs" / "robustness.parquet") if one.row in ("rll", "circle", "nra")]
    store_results(tmp_path / "leaderboard.parquet", clean)
    store_results(tmp_path / "robustness.parquet", faulty)
    folders = ["--docs", str(tmp_path), "--outputs", str(tmp_path / "none")]
    run_study(["robustness", "page", *folders])
    page, picture = (tmp_path / "robustness.md").read_text(), tmp_path / "images" / "robustness.png"
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    own = {line for line in (ROOT / "docs" / "robustness.md").read_text().splitlines() if line.startswith("| `")}
    assert set(lines[:2]) <= own
    assert [line.split("`")[1] for line in lines[:2]] == ["circle", "rll"]  # by MAP@R without faults
    assert "`nra`" not in page  # it isn't on this leaderboard
    before = picture.read_bytes()
    run_study(["robustness", "page", *folders])
    assert picture.read_bytes() == before


@pytest.mark.parametrize("name", ["leaderboard", "ablation"])
def test_without_results_pages_stay_as_they_are(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_study([name, "page", "--docs", str(tmp_path), "--outputs", str(tmp_path / "none")])
    assert capsys.readouterr().err == (
        f"error: {tmp_path / name}.parquet: holds no results; dml study {name} run makes them\n"
    )
    assert not list(tmp_path.glob("*.md"))


def test_sums_by_class_skip_queries_without_a_value() -> None:
    labels = np.array([7, 3, 7, 3, 9])
    counts, sums = sum_by_class(labels, {"map@r": np.array([0.5, 1.0, 0.25, np.nan, 0.0])})
    assert (counts, sums) == ([1, 2, 1], {"map@r": [1.0, 0.75, 0.0]})
