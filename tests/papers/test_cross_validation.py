"""The protocol: the same search for all losses, one look at the test classes, and the page of the stored results."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, ROOT, Here

from dml.ops.errors import InputError
from dml.ops.run_folders.run_files import write_values
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.plans import Plan, PlannedRun
from dml.papers.protocol.cross_validation import SEARCHED, TESTED, CrossValidation, Method
from dml.papers.protocol.cross_validation_page import compare_pairs, render_matrix
from dml.papers.protocol.cross_validation_results import (
    MethodResult,
    ProtocolResult,
    TriedConfiguration,
    check_setting,
    read_results,
    store_results,
    write_results,
)
from dml.papers.protocol.cross_validation_runs import Searches, TrainingLauncher, train_searches, train_tested_runs
from dml.papers.protocol.fold_ensembles import ensemble_file, join_embeddings, rank_ensemble
from dml.papers.protocol.protocol_command import parse_options, run_protocol
from dml.papers.protocol.search_spaces import RATE, RATES, ParameterSearch, SearchedRange, read_ranges
from dml.papers.tables.paper_tables import Training
from dml.report.statistics import ClassSums, sum_by_class, sum_runs_by_class

METHODS = [Method(loss, tuple(read_ranges(loss, RATES))) for loss in ("rll", "nra")]
SETTING = CrossValidation("emoji", folds=3, trials=6, seeds=2)


def test_ranges_span_the_values_of_the_leaderboard() -> None:
    rate, margin = read_ranges("rll", RATES)
    assert rate == SearchedRange(RATE, 1e-4, 3e-3, is_log=True)
    assert margin == SearchedRange("loss.margin", 0.2, 0.8, is_log=True)
    assert SearchedRange.spanning("loss.a", [36, 45, 54]) == SearchedRange("loss.a", 36, 54, is_whole=True)
    assert read_ranges("n_pair", RATES)[1].low == 3e-4  # YAML reads 3e-4 as text
    assert [searched.key for searched in read_ranges("tuplet", RATES)] == [RATE]
    with pytest.raises(InputError, match="losses=rl: no such loss; nearest: rll"):
        read_ranges("rl", RATES)


def test_a_search_told_the_same_proposes_the_same() -> None:
    ranges = [SearchedRange("a", 0.1, 10, is_log=True), SearchedRange("b", 2, 9, is_whole=True)]

    def search(loss: str, trials: int = 12) -> list[dict[str, float | int]]:
        proposals, replayed = [], ParameterSearch(loss, ranges)
        for _ in range(trials):
            proposals.append(replayed.ask())
            replayed.tell(-abs(np.log(proposals[-1]["a"])))
        return proposals

    proposals = search("rll")
    assert search("rll") == proposals
    assert search("rll", 5) == proposals[:5]
    assert search("nra") != proposals
    for proposal in proposals:
        assert 0.1 <= proposal["a"] <= 10
        assert float(f"{proposal['a']:.3g}") == proposal["a"]
        assert proposal["b"] in range(2, 10)
    late = [abs(np.log(proposal["a"])) for proposal in search("rll", 40)[30:]]
    assert np.mean(late) < np.log(10) / 3  # two thirds of what random draws reach: it has learned


class FakeRun:
    """A run that is finished as soon as it is trained; the value of a fold is a function of its overrides."""

    def __init__(self, training: Training, seed: int, trained: list["FakeRun"]) -> None:
        self.training, self.seed, self.folder = training, seed, Path(str(training) + str(seed))
        self._trained = trained

    @property
    def is_finished(self) -> bool:
        return any(run.folder == self.folder for run in self._trained)

    @property
    def metrics(self) -> dict[str, float]:
        number = sum(map(ord, str(self.training))) % 97 / 97
        return {"level0/map@r": number}

    def discard_checkpoints(self) -> None:
        pass


class FakePlan(Plan):
    trained: list[FakeRun] = []  # noqa: RUF012

    def list_runs(self, training: Training) -> list[PlannedRun]:
        return [FakeRun(training, seed, self.trained) for seed in range(self.seeds)]  # type: ignore[misc]


class FakeLauncher(TrainingLauncher):
    """Trains at once, but as many runs as are left."""

    left = [10**6]  # noqa: RUF012

    def train(self, runs: list[PlannedRun]) -> bool:  # type: ignore[override]
        for run in runs:
            if not self.left[0]:
                return True
            self.left[0] -= 1
            FakePlan.trained.append(run)  # type: ignore[arg-type]
        return False


@pytest.mark.parametrize("interruptions", [(), (1,), (7, 20, 3)])
def test_all_losses_have_the_same_budget_and_only_the_last_runs_are_tested(
    interruptions: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakePlan, "trained", [])
    for allowed in (*interruptions, 10**6):
        monkeypatch.setattr(FakeLauncher, "left", [allowed])
        searches, launcher = Searches(SETTING, FakePlan(Path(), SETTING.seeds)), FakeLauncher(Path())
        has_failed = train_searches(METHODS, searches, launcher) | train_tested_runs(METHODS, searches, launcher)
        assert has_failed == (allowed < 10**6)
    trained = FakePlan.trained
    searched = [run for run in trained if run.training.overrides[-2:] == SEARCHED]
    tested = [run for run in trained if run.training.overrides[-2:] == TESTED]
    assert len(searched) + len(tested) == len(trained) == len({run.folder for run in trained})
    for method in METHODS:
        of_method = [run for run in searched if f"loss={method.loss}" in run.training.overrides]
        assert len(of_method) == SETTING.trials * SETTING.folds
        assert {run.seed for run in of_method} == {0}
        best = searches.find_best(method)
        assert best is not None
        assert best.value == max(trial.value for trial in searches.list_trials(method, SETTING.trials))
        chosen = tuple(f"{key}={value}" for key, value in best.proposal.items())
        of_method = [run for run in tested if f"loss={method.loss}" in run.training.overrides]
        assert len(of_method) == SETTING.seeds * SETTING.folds
        assert all({*chosen} <= {*run.training.overrides} for run in of_method)
    assert trained[-len(tested) :] == tested  # no test class is seen before every search is complete


def test_an_incomplete_search_tests_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePlan, "trained", [])
    monkeypatch.setattr(FakeLauncher, "left", [SETTING.trials * SETTING.folds])
    searches = Searches(SETTING, FakePlan(Path(), 1))
    assert train_searches(METHODS, searches, FakeLauncher(Path()))
    assert [searches.list_tested_runs(method) for method in METHODS] == [[], []]


def test_joined_embeddings_have_the_mean_cosine() -> None:
    rng = np.random.default_rng(0)
    members = [rng.normal(size=(6, size)).astype(np.float32) * scale for size, scale in ((4, 1), (7, 50), (2, 0.01))]
    joined = join_embeddings(members)
    assert joined.shape == (6, 13)
    assert joined.dtype == np.float32
    for i, j in combinations(range(6), 2):
        cosines = [m[i] @ m[j] / np.sqrt((m[i] @ m[i]) * (m[j] @ m[j])) for m in members]
        assert joined[i] @ joined[j] == pytest.approx(sum(cosines) / 3, abs=1e-6)
    assert np.linalg.norm(joined, axis=1) == pytest.approx(np.ones(6), abs=1e-6)


def test_a_damaged_ensemble_is_named(tmp_path: Path) -> None:
    run = PlannedRun(Training("emoji/rll"), 0, tmp_path / "runs" / "rll" / "0")
    file, stored = ensemble_file([run]), {"counts": [1, 2], "sums": {"recall@1": [[0.5, 1.25]]}}
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(stored))  # as older versions wrote it
    assert rank_ensemble([run]) == ClassSums(**stored)  # type: ignore[arg-type]
    write_values(file, stored, {})
    assert rank_ensemble([run]) == ClassSums(**stored)  # type: ignore[arg-type]
    file.write_text(file.read_text().replace("1.25", "1.75"))
    with pytest.raises(InputError, match=rf"{file.name}: damaged \(.*; delete it to test the ensemble again"):
        rank_ensemble([run])


def test_sums_by_class_skip_queries_without_a_value() -> None:
    labels = np.array([7, 3, 7, 3, 9])
    counts, sums = sum_by_class(labels, {"map@r": np.array([0.5, 1.0, 0.25, np.nan, 0.0])})
    assert counts == [1, 2, 1]
    assert sums == {"map@r": [1.0, 0.75, 0.0]}


def make_test(mean: float, rows: int = 3, seed: int = 0) -> ClassSums:
    """Make the test of some models on 60 classes with 4 queries each."""
    rng = np.random.default_rng(seed)
    sums = [np.clip(rng.normal(4 * mean, 0.4, 60), 0, 4).round(4).tolist() for _ in range(rows)]
    return ClassSums([4] * 60, {"recall@1": sums, "map@r": sums})


def make_result() -> ProtocolResult:
    """Make a result of three losses, two of which are alike."""
    methods = []
    for number, (loss, mean) in enumerate({"nra": 0.5, "rll": 0.505, "triplet": 0.3}.items()):
        tried = [TriedConfiguration({RATE: 1e-3, "loss.alpha": 3}, [mean, mean - 0.1], 2.5)]
        tried.append(TriedConfiguration({RATE: 2e-3, "loss.alpha": 4}, [mean + 0.01, mean - 0.1], 3.5))
        single, ensemble = make_test(mean, 2, number), make_test(mean + 0.1, 1, number)
        methods.append(MethodResult(loss, [f"`{RATE}`"], tried, single, ensemble, 12.5))
    return ProtocolResult(CrossValidation("emoji", 2, 2, overrides=("frozen=true",)), methods)


def test_pairs_are_compared_by_classes() -> None:
    """The p-values are those of a plain loop over draws of the classes, times Holm's factors."""
    tests = {method.loss: method.single for method in make_result().methods}
    p_values = compare_pairs(tests, "map@r")
    assert p_values["nra", "rll"] > 0.05
    assert max(p_values["nra", "triplet"], p_values["rll", "triplet"]) < 0.001
    rng = np.random.default_rng(1)
    differences = tests["nra"].mean_sums("map@r") - tests["rll"].mean_sums("map@r")
    draws = np.array([differences[rng.integers(60, size=60)].sum() / 240 for _ in range(10_000)])
    expected = 2 * min((draws <= 0).mean(), (draws >= 0).mean())  # the largest of three: its factor is 1
    assert p_values["nra", "rll"] == pytest.approx(expected, abs=0.03)
    matrix = render_matrix(tests, "map@r").splitlines()
    assert matrix[0] == "|  | `nra` | `rll` | `triplet` |"
    assert matrix[2].count("**") == 2
    assert matrix[4].count("**") == 4
    with pytest.raises(InputError, match="tested on different classes"):
        compare_pairs({**tests, "rll": replace(tests["rll"], counts=[3] * 60)}, "map@r")


def test_results_are_stored_merged_and_shown(tmp_path: Path) -> None:
    result, file = make_result(), tmp_path / "protocol.json"
    assert read_results(file) is None
    write_results(file, result)
    assert read_results(file) == result
    new = replace(result, methods=[replace(result.methods[0], seconds=99.0)])
    assert [method.seconds for method in new.merge_into(result).methods] == [99.0, 12.5, 12.5]
    assert replace(result, methods=result.methods[::-1]).merge_into(None) == result
    parts = [replace(result, methods=[method]) for method in result.methods]  # of commands that end one after the other
    assert [store_results(tmp_path / "parts.json", part) for part in parts][-1] == result
    assert read_results(tmp_path / "parts.json") == result
    run_protocol(["show", "--docs", str(tmp_path)])
    page = (tmp_path / "protocol.md").read_text()
    assert "dml protocol losses=nra,rll,triplet dataset=emoji folds=2 trials=2 \\\n    --set frozen=true\n" in page
    single, ensembles = page.index("## Single models"), page.index("## Ensembles of the folds")
    assert single < page.index("Vector: 192 to 320 dimensions") < ensembles < page.index("Vector: 2 times 192 to 320 ")
    assert single < page.index("| `rll` | `optimizer.lr=0.002`") < page.index("| `triplet` |") < ensembles
    assert page.count("`optimizer.lr=0.001` `loss.alpha=3`") == 3  # every configuration, not the best alone
    assert "| `rll` | 4 | 0.1 | 2 | 0.2 |" in page
    file.write_text('{"setting": {}}')
    with pytest.raises(InputError, match="no results of dml protocol"):
        read_results(file)


def test_stored_results_of_another_setting_are_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, stored = tmp_path / "protocol.json", make_result()
    setting = replace(stored.setting, overrides=("frozen=true", "trainer.max_steps=9"))
    stored = replace(stored, setting=setting)
    check_setting(setting, None, file)
    check_setting(replace(setting, overrides=setting.overrides[::-1]), stored, file)
    write_results(file, stored)
    before = file.read_bytes()
    folders = [f"outputs={tmp_path / 'runs'}", f"docs={tmp_path}"]
    with pytest.raises(SystemExit) as stopped:
        run_protocol(["losses=circle", "folds=2", "trials=3", "--set", "frozen=true", *folders])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"error: {file}: its results have trials=2, --set frozen=true --set trainer.max_steps=9, not trials=3, "
        "--set frozen=true, and one page compares one setting; another --docs FOLDER takes the new results"
    )
    assert file.read_bytes() == before
    assert not (tmp_path / "runs").exists()
    for change, text in {"seeds": (2, "seeds=1, not seeds=2"), "overrides": ((), "not no --set")}.items():
        value, part = text
        with pytest.raises(InputError, match=part):
            check_setting(replace(setting, **{change: value}), stored, file)
    with pytest.raises(SystemExit):
        run_protocol(["losses=circle", "folds=1", *folders])
    assert capsys.readouterr().err.startswith("error: folds=1: ")  # what no folder would mend comes first


def test_results_of_other_values_of_conf_are_not_compared(tmp_path: Path) -> None:
    """Such as those of an older version, whose data set had another transform."""
    setting, file = SETTING, tmp_path / "protocol.json"
    assert setting.identify() != replace(setting, dataset="digits").identify()
    assert setting.identify() != replace(setting, overrides=("transform.size=32",)).identify()
    result = replace(make_result(), setting=setting, configuration=setting.identify())
    write_results(file, result)
    assert read_results(file) == result == result.merge_into(None)
    check_setting(setting, read_results(file), file)
    with pytest.raises(
        InputError, match=r"protocol\.json: its results were trained with other values of conf/ than today"
    ):
        check_setting(setting, replace(result, configuration="other"), file)


@pytest.mark.thorough
def test_the_committed_page_is_that_of_the_committed_results(tmp_path: Path) -> None:
    (tmp_path / "protocol.json").write_text((ROOT / "docs/protocol.json").read_text())
    run_protocol(["show", f"docs={tmp_path}"])
    assert (tmp_path / "protocol.md").read_text() == (ROOT / "docs/protocol.md").read_text()


def test_settings_are_given_with_and_without_dashes() -> None:
    options = parse_options(
        ["losses=rll,nra", "folds=3", "--set", "frozen=true", "trials=5", "set=trainer.max_steps=9"]
    )
    assert options.losses == ["rll", "nra"]
    assert (options.folds, options.trials, options.seeds) == (3, 5, 1)
    assert options.set == ["frozen=true", "trainer.max_steps=9"]
    dashed = parse_options(["--losses", "rll,nra", "--folds", "3", "--trials=5", "--rates", "1e-4,1e-3"])
    assert (dashed.losses, dashed.folds, dashed.rates) == (["rll", "nra"], 3, (1e-4, 1e-3))
    with pytest.raises(InputError, match=r"fold=3: no such setting; nearest: folds.*--set"):
        parse_options(["losses=rll", "fold=3"])
    with pytest.raises(InputError, match="losses: which ones"):
        parse_options(["folds=3"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["losses=rl"], "losses=rl: no such loss; nearest: rll"),
        (["losses=rll", "dataset=emojis"], "dataset=emojis: no such choice; nearest: emoji"),
        (["losses=rll", "launcher=slurm"], "launcher=slurm: no such choice"),
        (["losses=rll", "folds=1"], "folds=1: a cross-validation has 2 folds or more"),
        (["losses=rll", "folds=2000"], "dataset.folds=2000: there are only 573 training classes"),
        (["losses=rll,hyperbolic"], "losses=hyperbolic: its embeddings aren't compared by cosine"),
        (["losses=rll", "dataset=cub200"], "dml protocol wants CUB_200_2011: give --data"),
        (["losses=rll", "rates=1"], "--rates: 1 is not two rates"),
        (["losses=rll", "rates=1e-4,inf"], "--rates: 1e-4,inf is not two rates"),
        (["losses=rll", "--set", "dataset=folder"], "--set dataset=folder: dataset=... sets it"),
        (["losses=rll", "--set", "loss=triplet"], "--set loss=triplet: losses=... sets it"),
        (["losses=rll", "--set", "seed=7"], "--set seed=7: seeds=... sets it"),
        (["losses=rll", "--set", "dataset.folds=10"], "--set dataset.folds=10: the protocol sets it"),
        (["losses=rll", "--set", "evaluation.report.neighbors=5"], "--set evaluation.report.neighbors=5: the protocol"),
        (["losses=rll", "--set", "optimizer.lr=0.5"], "--set optimizer.lr=0.5: the search of rll sets it"),
    ],
)
@pytest.mark.pipeline
def test_mistakes_end_in_one_line_before_any_training(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_protocol([*arguments, f"outputs={tmp_path / 'runs'}", f"docs={tmp_path}"])
    assert stopped.value.code == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert line in printed
    assert not (tmp_path / "runs").exists()


SMALL_SETTINGS = [setting for setting in PLAIN if setting != "evaluation.report=null"]  # the protocol sets it
SMALL_SETTINGS += ["trainer.max_steps=4", "trainer.val_check_interval=2"]


@pytest.mark.pipeline
def test_a_small_protocol_is_interrupted_and_continued(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PlannedRun] = []
    fail_at = [3]

    def train(self: TrainingLauncher, runs: list[PlannedRun]) -> bool:
        for run in runs:
            if len(made) == fail_at[0]:
                return True
            here("train", *run.train_arguments(self.data))
            made.append(run)
            if "evaluation.split=val" not in run.training.overrides:  # a single model is an ensemble, too
                alone, tested = rank_ensemble([run]), sum_runs_by_class([RunFolder(run.folder)])
                assert alone.counts == tested.counts
                assert alone.sums == tested.sums
        return False

    monkeypatch.setattr(TrainingLauncher, "train", train)
    overrides = [f"set={value}" for value in (*SMALL_SETTINGS, f"dataset.root={small_emoji}")]
    arguments = ["losses=triplet,rll", "folds=2", "trials=2", f"outputs={tmp_path / 'runs'}", f"docs={tmp_path}"]
    with pytest.raises(SystemExit):
        run_protocol([*arguments, *overrides])
    assert not (tmp_path / "protocol.json").exists()
    fail_at[0] = -1
    run_protocol([*arguments, *overrides])
    assert len(made) == len({run.folder for run in made}) == 2 * 2 * 2 + 2 * 2  # none is made twice
    splits = [json.loads((run.folder / "metrics.json").read_text())["split"] for run in made]
    assert splits == ["val"] * 8 + ["test"] * 4
    assert not list(tmp_path.rglob("*.ckpt"))
    result = read_results(tmp_path / "protocol.json")
    assert result is not None
    for method in result.methods:
        assert [len(tried.values) for tried in method.tried] == [2, 2]
        assert all(0 < value < 1 for tried in method.tried for value in tried.values)
        assert sum(method.single.counts) == sum(method.ensemble.counts) == 111
        assert (len(method.single.sums["map@r"]), len(method.ensemble.sums["map@r"])) == (2, 1)
        assert method.ensemble.sums["map@r"][0] not in method.single.sums["map@r"]
    for run in made[:8]:  # the value of a trial is the best validation
        validated = RunFolder(run.folder).values("val/level0/map@r")
        assert run.metrics["level0/map@r"] == pytest.approx(max(validated.values()), abs=1e-6)
    page = (tmp_path / "protocol.md").read_text()
    run_protocol([*arguments, *overrides])
    assert len(made) == 12
    assert (tmp_path / "protocol.md").read_text() == page


@pytest.mark.pipeline
def test_other_launchers_begin_a_sweep_of_one_run(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    setting = CrossValidation("emoji", 2, 1, overrides=(*SMALL_SETTINGS, f"dataset.root={small_emoji}"))
    trial = Searches(setting, Plan(tmp_path / "runs (1, old)", 1)).list_trials(METHODS[0], 1)[0]
    launcher = TrainingLauncher(Path(), launcher="joblib", options=("hydra.launcher.n_jobs=1",))
    _, *arguments = launcher.sweep_arguments(trial.runs[0])
    assert {"launcher=joblib", "hydra.launcher.n_jobs=1"} <= {*arguments}
    local = [value for value in arguments if not value.startswith(("launcher=", "hydra.launcher."))]  # here
    here("train", *local)
    assert trial.runs[0].is_finished
    written = (trial.runs[0].folder / "metrics.json").stat().st_mtime_ns
    here("train", *local)  # a sweep skips it
    assert (trial.runs[0].folder / "metrics.json").stat().st_mtime_ns == written
