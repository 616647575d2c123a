"""The parts of the default training: the variants, their runs, and the page of the stored results."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from dml.ops.configuration.nested import flat
from dml.ops.errors import InputError
from dml.papers.ablation.ablation_command import run_ablation
from dml.papers.ablation.variants import AblationKind, collect_results, read_ablation, train_missing_runs
from dml.papers.experiments import compose
from dml.papers.leaderboard import contest_runs
from dml.papers.leaderboard.contest_results import read_results, write_results
from dml.papers.leaderboard.leaderboard_command import run_leaderboard
from dml.papers.plans import Plan, PlannedRun
from dml.run.resuming.stored_configuration import plain_config

ABLATION = read_ablation()
KINDS = list(ABLATION.kinds.values())


@pytest.mark.pipeline
@pytest.mark.parametrize("dataset", ABLATION.experiments)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_each_variant_changes_one_part_of_the_default(kind: AblationKind, dataset: str, tmp_path: Path) -> None:
    roots = {"photographs": Path("/data/grocery.csv")}

    def values(variant: str) -> dict[str, Any]:
        (run,) = ABLATION.list_runs(dataset, kind, variant, Plan(tmp_path, 1), roots)
        return flat(plain_config(compose(run.training)))

    first, *others = kind.variants
    default = values(first)
    assert default.get("frozen", False) is (kind.name == "heads")
    for variant in others:
        changed = values(variant)
        differing = {
            key.partition(".")[0] for key in default.keys() | changed.keys() if default.get(key) != changed.get(key)
        }
        assert len(differing) == 1, variant


def test_runs_that_are_there_are_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[PlannedRun] = []

    def train(runs: Sequence[PlannedRun], *_: Any) -> bool:
        asked.extend(runs)
        return False

    monkeypatch.setattr(contest_runs, "train_runs", train)
    kind, plan = ABLATION.kinds["heads"], Plan(tmp_path, 2)
    assert not train_missing_runs(ABLATION, kind, plan, {}, ["emoji"], 1)
    assert len({run.folder for run in asked}) == len(asked) == 2 * len(kind.variants)
    asked[0].folder.mkdir(parents=True)
    (asked[0].folder / "metrics.json").write_text("{}")
    before = len(asked)
    train_missing_runs(ABLATION, kind, plan, {}, ["emoji"], 1)
    assert len(asked) == 2 * before - 1
    assert collect_results(ABLATION, kind, plan, {}, ["emoji"]) == []


def test_some_variants_are_selected_beside_the_default() -> None:
    kind = ABLATION.kinds["whole"]
    selected = kind.select(["whitened", "three times"])
    assert list(selected.variants) == ["the default", "heads begin at whitened components", "three times the rate"]
    assert kind.select([""]) == kind
    with pytest.raises(InputError, match="--only begun: no variant of whole has this in its name; the names are the d"):
        kind.select(["whitened", "begun"])


def test_the_page_has_the_differences(tmp_path: Path) -> None:
    rll = next(result for result in read_results(ROOT / "docs" / "leaderboard.json") if result.loss == "rll")
    names = list(ABLATION.kinds["heads"].variants)[:2]
    halved = {metric: [[value / 2 for value in row] for row in rows] for metric, rows in rll.sums.items()}
    results = [
        replace(rll, dataset="emoji", kind="heads", loss=names[0]),
        replace(rll, dataset="emoji", kind="heads", loss=names[1], sums=halved),
    ]
    write_results(tmp_path / "ablation.json", results)
    run_ablation(["--show", "--docs", str(tmp_path)])
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(f"| {names[1]} |")]
    mean = 100 * rll.tested.mean("map@r")
    assert f"| {mean / 2:.1f} ± " in rows[0]
    assert f"| −{mean / 2:.1f} [−" in rows[0]
    assert "photographs" not in page.split("Numbers are", 1)[1]  # nothing was run there
    one = {metric: rows[:1] for metric, rows in halved.items()}
    write_results(tmp_path / "ablation.json", [results[0], replace(results[1], seeds=[0], sums=one)])
    run_ablation(["--show", "--docs", str(tmp_path)])
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert "1 to 3 seeds, " in page
    assert "nan" not in page


def test_a_missing_list_of_photographs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_ablation(["--photographs", str(tmp_path / "none.csv"), "--docs", str(tmp_path)])
    assert "none.csv: no such file; give a CSV file with a column path" in capsys.readouterr().err


@pytest.mark.first_cases(1)
@pytest.mark.pipeline
@pytest.mark.parametrize("run", [run_ablation, run_leaderboard])
def test_where_all_runs_fail_nothing_else_is_said(
    run: Callable[[Sequence[str]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(contest_runs, "train_runs", lambda *arguments: True)
    with pytest.raises(SystemExit) as ended:
        run(["--outputs", str(tmp_path / "runs"), "--docs", str(tmp_path)])
    assert ended.value.code == 2
    assert "--show" not in "".join(capsys.readouterr())
    assert not list(tmp_path.glob("*.md"))


def test_the_repositorys_page_is_that_of_its_results(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "ablation.json", tmp_path)
    run_ablation(["--show", "--docs", str(tmp_path)])
    assert (tmp_path / "ablation.md").read_text() == (ROOT / "docs" / "ablation.md").read_text()
