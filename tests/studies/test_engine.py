"""The engine of studies: what is trained when, what is chosen, and what is kept."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, Here

from dml.report.statistics import ClassSums
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.studies import engine as study_engine
from dml.studies.engine import Engine
from dml.studies.results import SEARCH, TEST, Result, group_rows, merge_results, read_results, store_results
from dml.studies.runs import Plan, Run
from dml.studies.study import Study, read_study
from dml.studies.study_command import run_study

pytestmark = pytest.mark.pipeline

GRID = """
seeds: 2
metrics: [map@r]
datasets: {emoji: {experiment: leaderboard/emoji}}
each: loss={}
conditions: {heads: {}, whole: {overrides: [training.frozen=false]}}
search:
  condition: heads
  score: level0/map@r
  steps: [[optimizer.lr=1, optimizer.lr=2]]
rows:
  rll: {values: {loss.margin: [0.3, 0.5]}}
  nra: [sampler.images_per_class=2]
"""


def read(text: str, tmp_path: Path, *settings: str) -> Study:
    (tmp_path / "study.yaml").write_text(text)
    return read_study(tmp_path / "study.yaml", settings)


class Invented:
    """Stands in for the trainings: a run's metrics are a function of its overrides, and only some runs are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int = 10**6) -> None:
        self.made: list[Run] = []
        self.left = left

        def train(plan: Plan, runs: Iterable[Run], purpose: str) -> bool:
            missing = [run for run in {run.folder: run for run in runs}.values() if not run.is_finished]
            for run in missing[: self.left - len(self.made)]:
                self.made.append(run)
                (run.folder / "checkpoints").mkdir(parents=True)
                for name in ("best", "last"):
                    (run.folder / "checkpoints" / f"{name}.ckpt").touch()
                value = sum(map(ord, shlex.join(run.training.overrides))) % 97 / 97
                (run.folder / "metrics.json").write_text(json.dumps({"level0/map@r": value}))
            return not all(run.is_finished for run in missing)

        monkeypatch.setattr(Plan, "train", train)
        monkeypatch.setattr(study_engine, "sum_test_by_class", lambda _: ClassSums([1], {"map@r": [[0.5]]}))


@pytest.mark.parametrize("interruptions", [(), (1,), (2, 1)])
def test_a_search_goes_from_step_to_step_and_then_seeds_are_tested(
    interruptions: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, invented = read(GRID, tmp_path, "rows=rll", "conditions=heads"), Invented(monkeypatch)
    for allowed in (*interruptions, 100):
        invented.left = len(invented.made) + allowed
        assert Engine(study, Plan(tmp_path, 2), []).train() == (allowed < 100)
    assert len(invented.made) == len({run.folder for run in invented.made}) == 2 + 2 + 1  # seed 0 of the test was tried
    assert [run.seed for run in invented.made] == [0] * 4 + [1]
    scores = {run.training.overrides: run.metrics["level0/map@r"] for run in invented.made[:4]}
    first, second = list(scores)[:2], list(scores)[2:]
    best = max(first, key=lambda overrides: scores[overrides])
    assert second == [(*best, "loss.margin=0.3"), (*best, "loss.margin=0.5")]
    assert invented.made[-1].training.overrides == max(scores, key=lambda overrides: scores[overrides])


def test_other_conditions_take_the_stored_choice_of_the_searched_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, whole = (read(GRID, tmp_path, "rows=rll", f"conditions={name}") for name in ("heads", "whole"))
    invented = Invented(monkeypatch)
    engine = Engine(heads, Plan(tmp_path / "runs", 2), [])
    assert not engine.train()
    stored, before = engine.collect(), len(invented.made)
    assert not Engine(whole, Plan(tmp_path / "elsewhere", 2), stored).train()
    later = invented.made[before:]
    assert [run.seed for run in later] == [0, 1]
    chosen = shlex.split(next(result.overrides for result in stored if result.stage == TEST))
    assert all(run.training.overrides == ("loss=rll", *chosen, "training.frozen=false") for run in later)
    assert not Engine(whole, Plan(tmp_path / "anew", 2), []).train()  # else the search is made first
    assert len(invented.made) == before + 2 + 4 + 2


def test_each_condition_searches_with_its_own_values_and_tested_models_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GRID.replace("  condition: heads\n", "").replace("heads: {}", "heads: {steps: [[optimizer.lr=3]]}")
    study, invented = read(f"{text}keep_models: true", tmp_path, "rows=rll"), Invented(monkeypatch)
    engine = Engine(study, Plan(tmp_path, 2), [])
    assert not engine.train()
    tried = [run.training.overrides[1:] for run in invented.made if run.seed == 0]
    whole = [overrides for overrides in tried if "training.frozen=false" in overrides]
    assert [overrides[0] for overrides in tried if overrides not in whole] == ["optimizer.lr=3"] * 3
    assert {overrides[1] for overrides in whole} == {"optimizer.lr=1", "optimizer.lr=2"}
    assert len(whole) == 4
    engine.discard_checkpoints()
    tested = {run.configuration for run in invented.made if run.seed == 1}
    kept = [run.folder / "checkpoints" / "best.ckpt" for run in invented.made if run.configuration in tested]
    assert len(kept) == 4
    assert sorted(tmp_path.rglob("*.ckpt")) == sorted(kept)


def test_a_failed_search_keeps_its_rows_from_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, invented = read(GRID, tmp_path, "conditions=heads"), Invented(monkeypatch, left=1)
    assert Engine(study, Plan(tmp_path, 2), []).train()
    assert len(invented.made) == 1
    assert "error: not trained, as a run of a search failed: rll, nra" in capsys.readouterr().err


def test_the_commands_are_those_of_the_next_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = read(GRID, tmp_path, "rows=nra", "conditions=heads")
    Invented(monkeypatch)
    engine = Engine(study, Plan(tmp_path, 2), [])
    tried = [command[4] for command in engine.list_commands()]
    assert tried == ["optimizer.lr=1", "optimizer.lr=2"]
    assert not engine.train()
    assert engine.list_commands() == []


def test_stored_results_take_the_place_of_runs_until_the_training_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, invented = read(GRID, tmp_path, "conditions=heads"), Invented(monkeypatch)
    engine = Engine(study, Plan(tmp_path / "runs", 2), [])
    engine.train()
    stored, made = engine.collect(), len(invented.made)
    again = Engine(study, Plan(tmp_path / "none", 2), stored)
    assert not again.train()
    assert len(invented.made) == made
    assert sorted(again.collect(), key=str) == sorted(stored, key=str)
    assert len(again.select_valid(stored)) == len(stored) == 4 + 2 + 2 * 2
    changed = read(GRID.replace("images_per_class=2", "images_per_class=3"), tmp_path, "conditions=heads")
    engine = Engine(changed, Plan(tmp_path / "none", 2), stored)
    assert {result.row for result in engine.select_valid(stored)} == {"rll"}
    engine.train()
    assert len(invented.made) == made + 2 + 1
    more = Engine(study, Plan(tmp_path / "runs", 1), stored)  # results of further seeds stay
    assert sorted(result.seed for result in more.collect() if result.stage == TEST) == [0, 0, 1, 1]


def test_what_a_study_sets_is_not_set_twice(tmp_path: Path) -> None:
    study = read(GRID, tmp_path)
    for override, setter in {
        "loss=circle": "the study",
        "sampler.images_per_class=3": "the study",
        "training.frozen=true": "the study",
        "optimizer.lr=1": "the search of nra",
        "loss.margin=1": "the search of rll",
    }.items():
        with pytest.raises(InputError, match=f"^--set {override}: {setter} sets it"):
            Engine(study, Plan(tmp_path, 1, overrides=(override,)), []).check()
    Engine(study, Plan(tmp_path, 1, overrides=("training.ema=0.9",)), []).check()


# results


def make_result(row: str, seed: int = 0, stage: str = TEST) -> Result:
    rng = np.random.default_rng(seed)
    sums = {"map@r": [] if stage == SEARCH else rng.random(5).tolist()}
    return Result(
        *("emoji", "heads", row, stage, seed),
        overrides="'optimizer.loss={lr:0.01}' a=1",
        configuration="0a",
        seconds=1.5,
        facts={} if stage == SEARCH else {"vector": "64"},
        metrics={"score": 0.5} if stage == SEARCH else {"level0/nmi": 0.25},
        counts=[] if stage == SEARCH else [4, 3, 1, 2, 2],
        sums={} if stage == SEARCH else sums,
    )


def test_results_are_stored_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "mine.parquet"
    old = [make_result("rll"), make_result("rll", seed=1), make_result("rll", stage=SEARCH), make_result("nra")]
    assert read_results(path) == []
    store_results(path, old)
    assert sorted(read_results(path), key=str) == sorted(old, key=str)
    new = [make_result("rll", seed=7)]
    merged = store_results(path, new)  # of two commands at once the second keeps what the first has stored
    assert sorted(merged, key=str) == sorted(read_results(path), key=str) == sorted(merge_results(old, new), key=str)
    assert [one.seed for one in merged if (one.row, one.stage) == ("rll", TEST)] == [7]
    assert len(merged) == 3
    path.write_text("other")
    with pytest.raises(InputError, match=r"mine\.parquet: no results of a study \(.*; delete it, or take it from git"):
        read_results(path)


@pytest.mark.thorough
def test_a_small_study_is_trained_interrupted_and_continued(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a search: real runs, whose results outlive them."""
    small = [one for one in PLAIN if one != "evaluation.report=null"]
    small += ["model.heads=[H]", "trainer.max_steps=2", "trainer.val_check_interval=1", "evaluation.clustering=false"]
    overrides = json.dumps([*small, f"dataset.root={small_emoji}"])
    text = f"""
seeds: 2
datasets: {{emoji: {{experiment: leaderboard/emoji, overrides: {overrides}}}}}
each: loss={{}}
rows: {{triplet: {{}}, rll: {{values: {{loss.margin: [0.2, 0.8]}}}}}}
search: {{score: val/level0/map@r, steps: [[optimizer.lr=1e-3, optimizer.lr=1e-2]]}}
columns: {{loss: code, chosen: chosen, recall@1: interval recall@1, MAP@R: seeds map@r}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    made: list[Run] = []
    fail_at = [1]

    def train(plan: Plan, runs: Iterable[Run], purpose: str) -> bool:
        for run in (run for run in runs if not run.is_finished):
            if len(made) == fail_at[0]:
                return True
            here("train", *run.train_arguments(Path()))
            made.append(run)
        return False

    monkeypatch.setattr(Plan, "train", train)
    arguments = [str(tmp_path / "mine.yaml"), "run", "--outputs", str(tmp_path / "runs"), "--docs", str(tmp_path)]
    with pytest.raises(SystemExit):
        run_study(arguments)
    assert not (tmp_path / "mine.md").exists()
    fail_at[0] = -1
    run_study(arguments)
    assert len(made) == len({run.folder for run in made}) == (2 + 1) + (2 + 2 + 1)
    assert not list(tmp_path.rglob("*.ckpt"))
    study = read_study(tmp_path / "mine.yaml")
    stored = read_results(tmp_path / "mine.parquet")
    rows = group_rows(stored, study)
    for cell in study.cells:
        row = rows[cell.key]
        assert [run.seed for run in row.runs] == [0, 1]
        assert sum(row.tested.counts) == 111
    tried = [result for result in stored if result.stage == SEARCH]
    assert len(tried) == 2 + 4
    for run in made:  # the score of a trial is its best validation
        validated = RunFolder(run.folder).values("val/level0/map@r")
        scores = {one.metrics["score"] for one in tried if one.configuration == run.configuration}
        assert scores <= {max(validated.values())} or run.seed == 1
    page = (tmp_path / "mine.md").read_text()
    assert "2 seeds, 111 queries of" in page
    (tmp_path / "runs").rename(tmp_path / "gone")
    run_study(arguments)
    assert len(made) == 8
    assert (tmp_path / "mine.md").read_text() == page
