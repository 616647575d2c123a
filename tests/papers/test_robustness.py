"""What losses lose by faults in the training images: the runs, the results file, and the page."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Refused

from dml.ops.errors import InputError
from dml.papers.experiments import compose
from dml.papers.leaderboard import contest_runs
from dml.papers.leaderboard.contest_results import ContestResult, read_results, write_results
from dml.papers.plans import Plan, PlannedRun
from dml.papers.robustness.conditions import (
    check_seeds,
    collect_results,
    read_clean_results,
    read_conditions,
    select_losses,
    train_missing_runs,
)
from dml.papers.robustness.robustness_command import run_robustness
from dml.papers.robustness.robustness_page import compute_difference

CONDITIONS = read_conditions()
LEADERBOARD = read_clean_results(ROOT / "docs" / "leaderboard.json", CONDITIONS)
CLEAN = select_losses(LEADERBOARD, ["rll", "circle"])


def worse(result: ContestResult, kind: str, factor: float) -> ContestResult:
    """The result with every sum multiplied by the factor."""
    sums = {name: [[value * factor for value in row] for row in rows] for name, rows in result.sums.items()}
    return replace(result, kind=kind, sums=sums)


def test_each_condition_plants_its_faults_with_the_seed_of_the_run(tmp_path: Path) -> None:
    for condition in CONDITIONS.conditions:
        runs = CONDITIONS.list_runs(CLEAN[0], condition, Plan(tmp_path, 3))
        assert [run.seed for run in runs] == [0, 1, 2]
        config = compose(runs[0].training)
        assert config.dataset.name == "emoji"
        assert config.training.frozen is True
        assert set(CLEAN[0].overrides) <= set(runs[0].training.overrides)
        config.seed = 5
        assert config.dataset.planted.seed == 5


def test_runs_that_are_there_are_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[PlannedRun] = []

    def train(runs: Sequence[PlannedRun], *_: Any) -> bool:
        asked.extend(runs)
        return False

    monkeypatch.setattr(contest_runs, "train_runs", train)
    plan = Plan(tmp_path, 2)
    assert not train_missing_runs(CONDITIONS, CLEAN, plan, 1)
    assert len({run.folder for run in asked}) == len(asked) == 2 * len(CLEAN) * len(CONDITIONS.conditions)
    asked[0].folder.mkdir(parents=True)
    (asked[0].folder / "metrics.json").write_text("{}")
    before = len(asked)
    train_missing_runs(CONDITIONS, CLEAN, plan, 1)
    assert len(asked) == 2 * before - 1
    assert collect_results(CONDITIONS, CLEAN, plan) == []  # no loss has all of its seeds


def test_the_page_has_the_differences(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "leaderboard.json", tmp_path)
    write_results(tmp_path / "robustness.json", [worse(CLEAN[0], "noise_10", 0.9), worse(CLEAN[1], "long_tail", 1.1)])
    run_robustness(["--show", "--docs", str(tmp_path)])
    page = (tmp_path / "robustness.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    mean = 100 * CLEAN[0].tested.mean("map@r")
    assert f"| {mean:.1f} | −{mean / 10:.1f} [−" in rows["`rll`"]
    assert rows["`circle`"].count("+") == 1
    assert list(rows)[:2] == ["`circle`", "`rll`"]  # by MAP@R without faults; losses without a run aren't there
    assert compute_difference(worse(CLEAN[0], "x", 1.0), CLEAN[0]) == 0
    first = (tmp_path / "images" / "robustness.png").read_bytes()
    run_robustness(["--show", "--docs", str(tmp_path)])
    assert (tmp_path / "images" / "robustness.png").read_bytes() == first


def test_without_results_the_page_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "docs" / "leaderboard.json", tmp_path)
    with pytest.raises(SystemExit):
        run_robustness(["--show", "--docs", str(tmp_path)])
    assert "robustness.json: holds no results; the command without --show trains" in capsys.readouterr().err
    assert not (tmp_path / "robustness.md").exists()


def test_a_loss_that_is_not_on_the_leaderboard_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loss rl: not on the leaderboard of emoji; nearest: rll"):
        select_losses(LEADERBOARD, ["rl"])
    missing = tmp_path / "leaderboard.json"
    with pytest.raises(InputError, match=f"{missing}: no results on emoji; dml leaderboard makes them"):
        read_clean_results(missing, CONDITIONS)


@pytest.mark.thorough
@pytest.mark.pipeline
def test_the_repositorys_page_is_that_of_its_results(tmp_path: Path) -> None:
    for name in ("leaderboard.json", "robustness.json"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    run_robustness(["--show", "--docs", str(tmp_path)])
    assert (tmp_path / "robustness.md").read_text() == (ROOT / "docs" / "robustness.md").read_text()


def test_a_result_of_a_loss_that_the_leaderboard_lacks_is_left_out(tmp_path: Path) -> None:
    write_results(tmp_path / "leaderboard.json", CLEAN[:1])
    write_results(tmp_path / "robustness.json", [worse(result, "noise_10", 0.9) for result in CLEAN])
    run_robustness(["--show", "--docs", str(tmp_path)])
    page = (tmp_path / "robustness.md").read_text(encoding="utf-8")
    assert "| `rll` |" in page
    assert "`circle`" not in page
    assert len(read_results(tmp_path / "robustness.json")) == 2


def test_other_seeds_than_the_leaderboards_are_refused_before_any_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "leaderboard.json", CLEAN)
    write_results(tmp_path / "robustness.json", [worse(CLEAN[0], "noise_10", 0.9)])
    before = (tmp_path / "robustness.json").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        run_robustness(["--seeds", "1", "--outputs", str(tmp_path / "runs"), "--docs", str(tmp_path)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --seeds 1: leaderboard.json has 3 seeds of rll, ")
    assert line.endswith("--losses rll --seeds 3 fits")
    assert (tmp_path / "robustness.json").read_bytes() == before
    assert not (tmp_path / "runs").exists()
    check_seeds(CLEAN, Plan(tmp_path, 3))


def test_a_training_refuses_what_it_cannot_plant(refused: Refused) -> None:
    assert "dataset.planted.label_noise=2: expected a share" in refused("dataset.planted={label_noise:2}")
