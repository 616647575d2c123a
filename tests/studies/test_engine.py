"""The engine of studies: what is trained when, what is chosen, and what is kept."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, Here

from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.studies.engine import Engine, join_embeddings
from dml.studies.results import ENSEMBLE, SEARCH, TEST, Result, Results, merge_results, read_results, store_results
from dml.studies.runs import Plan, Run
from dml.studies.study import Study, read_study
from dml.studies.study_command import run_study

pytestmark = pytest.mark.pipeline

GRID = """
seeds: 2
claims: {}
metrics: [map@r]
datasets: {emoji: {}}
conditions: {heads: {}, whole: {overrides: [training.frozen=false]}}
search:
  condition: heads
  score: level0/map@r
  overrides: [evaluation.split=val]
  steps: [[optimizer.lr=1, optimizer.lr=2]]
rows:
  rll: {run: claims/rll, values: {loss.margin: [0.3, 0.5]}}
  t_n_0: {run: claims/rll loss.negative_temperature=0}
"""
LIKE = """
seeds: 2
claims: {}
metrics: [map@r]
datasets: {emoji: {}}
search: {overrides: [evaluation.split=val]}
rows:
  rll: {run: claims/rll, tune: [optimizer.lr=1, optimizer.lr=2], by: level0/map@r}
  t_n_0: {run: claims/rll loss.negative_temperature=0, like: rll}
"""
FOLDED = """
seeds: 2
folds: 3
trials: 5
rates: [1.0e-4, 3.0e-3]
claims: {}
metrics: [map@r]
experiment: protocol/base
datasets: [emoji]
each: loss={}
rows: {rll: {values: {loss.margin: [0.2, 0.4, 0.8]}}, triplet: {}}
search: {score: level0/map@r, overrides: [evaluation.split=val]}
tested: [evaluation.split=null]
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
                RunFolder(run.folder).path.mkdir(parents=True)
                value = sum(map(ord, shlex.join(run.training.overrides))) % 97 / 97
                (run.folder / "metrics.json").write_text(json.dumps({"level0/map@r": value}))
            return not all(run.is_finished for run in missing)

        monkeypatch.setattr(Plan, "train", train)

    @property
    def searched(self) -> list[Run]:
        return [run for run in self.made if "evaluation.split=val" in run.training.overrides]

    @property
    def tested(self) -> list[Run]:
        return [run for run in self.made if run not in self.searched]


@pytest.mark.parametrize("interruptions", [(), (1,), (2, 1, 2)])
def test_a_search_goes_from_step_to_step_and_then_seeds_are_tested(
    interruptions: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, invented = read(GRID, tmp_path, "rows=rll", "conditions=heads"), Invented(monkeypatch)
    for allowed in (*interruptions, 100):
        invented.left = len(invented.made) + allowed
        assert Engine(study, Plan(tmp_path, 2), []).train() == (allowed < 100)
    assert len(invented.made) == len({run.folder for run in invented.made}) == 2 + 2 + 2
    assert invented.made[-2:] == invented.tested  # no test class is seen before the search is complete
    assert [run.seed for run in invented.made] == [0] * 5 + [1]
    rates = {run.training.overrides[0]: run.metrics["level0/map@r"] for run in invented.searched[:2]}
    best = max(rates, key=lambda rate: rates[rate])
    values = {run.training.overrides[:2]: run.metrics["level0/map@r"] for run in invented.searched[2:]}
    assert {first for first, _ in values} == {best}
    chosen = max(values, key=lambda overrides: values[overrides])
    assert all(run.training.overrides == chosen for run in invented.tested)


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
    assert later == invented.tested[2:]
    chosen = shlex.split(next(result.overrides for result in stored if result.stage == TEST))
    assert all(run.training.overrides == (*chosen, "training.frozen=false") for run in later)
    assert not Engine(whole, Plan(tmp_path / "anew", 2), []).train()  # else the search is made first
    assert len(invented.made) == before + 2 + 4 + 2


def test_a_row_takes_the_choice_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, invented = read(LIKE, tmp_path, "rows=t_n_0"), Invented(monkeypatch)
    engine = Engine(study, Plan(tmp_path, 2), [])
    assert [command[1] for command in engine.list_commands()] == ["experiment=claims/rll"] * 2
    assert not engine.train()
    assert len(invented.searched) == 2
    values = {run.training.overrides[0]: run.metrics["level0/map@r"] for run in invented.searched}
    best = max(values, key=lambda rate: values[rate])
    assert [run.training.overrides for run in invented.tested] == [("loss.negative_temperature=0", best)] * 2
    assert engine.list_commands() == []


def test_a_failed_search_keeps_its_rows_from_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, invented = read(LIKE, tmp_path), Invented(monkeypatch, left=1)
    assert Engine(study, Plan(tmp_path, 2), []).train()
    assert len(invented.made) == 1
    assert "error: not trained, as a run of a search failed: rll, t_n_0" in capsys.readouterr().err


@pytest.mark.parametrize("interruptions", [(), (7, 20, 3)])
def test_all_rows_have_the_same_budget_in_folds(
    interruptions: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, invented = read(FOLDED, tmp_path), Invented(monkeypatch)
    for allowed in (*interruptions, 1000):
        invented.left = len(invented.made) + allowed
        engine = Engine(study, Plan(tmp_path, 2), [])
        assert engine.train() == (allowed < 1000)
    assert len(invented.made) == len({run.folder for run in invented.made}) == 2 * (5 * 3 + 2 * 3)
    assert invented.made[-12:] == invented.tested
    for cell in study.cells:
        trials = engine.list_trials(cell)
        assert [len(trial.jobs) for trial in trials] == [3] * 5
        chosen = max(trials, key=lambda trial: trial.score).overrides
        tests = [run for run in invented.tested if f"loss={cell.row}" in run.training.overrides]
        assert len(tests) == 2 * 3
        assert all({*chosen} <= {*run.training.overrides} for run in tests)


def test_stored_results_take_the_place_of_runs_until_the_training_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, invented = read(LIKE, tmp_path), Invented(monkeypatch)
    engine = Engine(study, Plan(tmp_path / "runs", 2), [])
    engine.train()
    stored, made = engine.collect(), len(invented.made)
    again = Engine(study, Plan(tmp_path / "none", 2), stored)
    assert not again.train()
    assert len(invented.made) == made
    assert sorted(again.collect(), key=str) == sorted(stored, key=str)
    assert len(again.select_valid(stored)) == len(stored) == 2 + 2 * 2
    changed = read(LIKE.replace("temperature=0", "temperature=1"), tmp_path)
    engine = Engine(changed, Plan(tmp_path / "none", 2), stored)
    assert {result.row for result in engine.select_valid(stored)} == {"rll"}
    engine.train()
    assert len(invented.made) == made + 2
    more = Engine(study, Plan(tmp_path / "runs", 1), stored)  # results of further seeds stay
    assert sorted(result.seed for result in more.collect() if result.stage == TEST) == [0, 0, 1, 1]


def test_what_a_study_sets_is_not_set_twice(tmp_path: Path) -> None:
    study = read(FOLDED, tmp_path)
    for override, setter in {
        "loss=circle": "the study",
        "dataset=cub200": "the study",
        "optimizer.lr=1": "the search of triplet",
        "evaluation.split=test": "the search of triplet",
    }.items():
        with pytest.raises(InputError, match=f"^--set {override}: {setter} sets it"):
            Engine(study, Plan(tmp_path, 1, overrides=(override,)), []).check()
    with pytest.raises(InputError, match=r"^--set dataset.folds=10: folds=\.\.\. sets it"):
        Plan(tmp_path, 1, overrides=("dataset.folds=10",))
    Engine(study, Plan(tmp_path, 1, overrides=("training.ema=0.9",)), []).check()
    balls = FOLDED.replace("triplet: {}", "hyperbolic: {}") + "ensembles: true\n"
    with pytest.raises(InputError, match=r"loss=hyperbolic .*: its embeddings aren't compared by cosine, so models"):
        Engine(read(balls, tmp_path), Plan(tmp_path, 1), []).check()


# results


def make_result(row: str, seed: int = 0, stage: str = TEST) -> Result:
    rng = np.random.default_rng(seed)
    sums = {"map@r": [] if stage == SEARCH else rng.random(5).tolist()}
    return Result(
        *("emoji", "heads", row, stage, seed, 0),
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


def test_joined_embeddings_have_the_mean_cosine() -> None:
    rng = np.random.default_rng(0)
    members = [rng.normal(size=(6, size)).astype(np.float32) * scale for size, scale in ((4, 1), (7, 50), (2, 0.01))]
    joined = join_embeddings(members)
    assert (joined.shape, joined.dtype) == ((6, 13), np.float32)
    cosines = [(m @ m.T) / np.linalg.norm(m, axis=1) / np.linalg.norm(m, axis=1)[:, None] for m in members]
    np.testing.assert_allclose(joined @ joined.T, np.mean(cosines, axis=0), atol=1e-6)


def test_a_small_study_is_trained_interrupted_and_continued(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With folds, a search and ensembles: real runs, whose results outlive them."""
    small = [one for one in PLAIN if one != "evaluation.report=null"]
    small += ["model.heads=[H]", "evaluation.heads=false", "trainer.max_steps=2"]
    overrides = json.dumps([*small, "trainer.val_check_interval=1", f"dataset.root={small_emoji}"])
    text = f"""
seeds: 1
folds: 2
trials: 2
rates: [1.0e-3, 1.0e-2]
experiment: protocol/base
datasets: [emoji]
overrides: {overrides}
each: loss={{}}
rows: {{triplet: {{}}, rll: {{values: {{loss.margin: [0.2, 0.4, 0.8]}}}}}}
search: {{score: val/level0/map@r, overrides: [evaluation.split=val, evaluation.report=null]}}
tested: [evaluation.split=null, "evaluation.report={{neighbors: 1, map: false, seed: 0}}"]
ensembles: true
columns: {{loss: code, chosen: chosen, recall@1: interval recall@1, MAP@R: seeds map@r, sd: deviation map@r}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    made: list[Run] = []
    fail_at = [3]

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
    assert len(made) == len({run.folder for run in made}) == 2 * 2 * 2 + 2 * 2
    assert [json.loads((run.folder / "metrics.json").read_text())["split"] for run in made] == ["val"] * 8 + [
        "test"
    ] * 4
    assert not list(tmp_path.rglob("*.ckpt"))
    study = read_study(tmp_path / "mine.yaml")
    stored = read_results(tmp_path / "mine.parquet")
    results = Results(stored)
    for cell in study.cells:
        single, ensemble = results.find_row(cell), results.find_row(cell, ENSEMBLE)
        assert single is not None
        assert ensemble is not None
        assert (len(single.runs), len(ensemble.runs)) == (2, 1)
        assert sum(single.tested.counts) == sum(ensemble.tested.counts) == 111
        assert ensemble.values("map@r")[0] not in single.values("map@r")
        tried = results.list_tried(cell)
        assert [len(runs) for runs in tried] == [2, 2]
    for run in made[:8]:  # the score of a trial is its best validation
        validated = RunFolder(run.folder).values("val/level0/map@r")
        scores = {one.metrics["score"] for one in stored if one.configuration == run.configuration}
        assert scores == {max(validated.values())}
    page = (tmp_path / "mine.md").read_text()
    assert "2 seeds, 111 queries of" in page
    (tmp_path / "runs").rename(tmp_path / "gone")
    run_study(arguments)
    assert len(made) == 12
    assert (tmp_path / "mine.md").read_text() == page
