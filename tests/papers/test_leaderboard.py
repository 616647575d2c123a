"""The leaderboard: what is searched, what is chosen, and the page that is computed from the stored results."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, SMALL, Here
from omegaconf import OmegaConf

from dml.ops.errors import InputError
from dml.papers.experiments import compose
from dml.papers.leaderboard import contest_runs
from dml.papers.leaderboard.contest_results import (
    ContestResult,
    merge_results,
    read_results,
    store_results,
    with_stored_choices,
    write_results,
)
from dml.papers.leaderboard.contest_runs import Search
from dml.papers.leaderboard.contests import Contest, TrainingKind, read_leaderboard, require_known, select_contests
from dml.papers.leaderboard.leaderboard_command import run_leaderboard
from dml.papers.leaderboard.leaderboard_page import MARKERS, class_interval, render_summary
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import Training

BOARD = read_leaderboard({})
NOT_ON_IT = {
    "angular_n_pair",  # the sum of two losses that are on it
    "softmax",  # Fig. 4 of NRA alone
    "matryoshka",  # any loss over prefixes of the embedding
    "tuplet_drift",  # the drift of an embedding whose network learns
}


@pytest.fixture(scope="module")
def emoji_contests() -> list[Contest]:
    return select_contests(BOARD, ["emoji"], None)


def test_every_loss_is_on_it(emoji_contests: list[Contest]) -> None:
    assert {contest.loss for contest in emoji_contests} == {
        path.stem for path in (ROOT / "conf/loss").glob("*.yaml")
    } - NOT_ON_IT


@pytest.mark.pipeline
def test_the_searched_values_have_the_configured_one_in_the_middle(emoji_contests: list[Contest]) -> None:
    for contest in emoji_contests:
        configured = compose(contest.training)
        for (override,), is_configured in zip(contest.values, (False, True, False), strict=False):
            key, value = override.split("=")
            assert (OmegaConf.select(configured, key) == float(value)) == is_configured, override


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="loss rl: not on the leaderboard; nearest: rll"):
        select_contests(BOARD, None, ["rl"])
    with pytest.raises(InputError, match="dataset cars: not on the leaderboard"):
        select_contests(BOARD, ["cars"], None)
    with pytest.raises(InputError, match="kind whol: not on the leaderboard; nearest: whole"):
        require_known("kind", "whol", BOARD.kinds)


CONTEST = Contest(
    "triplet",
    "emoji",
    Training("leaderboard/emoji", ("loss=triplet",)),
    rates=(("lr=1",), ("lr=2",), ("lr=3",)),
    values=(("margin=4",), ("margin=5",)),
    kinds={
        "heads": TrainingKind("Heads", "heads", ()),
        "whole": TrainingKind("Whole networks", "whole", ("frozen=false",)),
    },
)
SCORES = {"lr=1": 0.5, "lr=2": 0.7, "lr=3": 0.6, "lr=2 margin=4": 0.65, "lr=2 margin=5": 0.72}


class FakeRun:
    """A run that is finished as soon as a test says so."""

    def __init__(self, training: Training, seed: int, finished: set[str]) -> None:
        self.name = " ".join(training.overrides[1:])
        self.seed = seed
        self._finished = finished

    @property
    def is_finished(self) -> bool:
        return self.name in self._finished


class FakePlan(Plan):
    finished: set[str] = set()  # noqa: RUF012

    def list_runs(self, training: Training) -> list[PlannedRun]:
        return [FakeRun(training, seed, self.finished) for seed in range(3)]  # type: ignore[misc]


def test_the_search_goes_from_rates_to_values_to_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_runs, "score_candidate", lambda candidate: SCORES[candidate[1].name])
    plan = FakePlan(Path(), 3)
    search = Search(plan)

    def list_names() -> list[str]:
        return [run.name for _, run in search.list_candidates(CONTEST)]  # type: ignore[attr-defined]

    assert list_names() == ["lr=1", "lr=2", "lr=3"]
    plan.finished |= {"lr=1", "lr=2"}
    assert list_names() == ["lr=1", "lr=2", "lr=3"]
    plan.finished |= {"lr=3"}
    assert list_names()[3:] == ["lr=2 margin=4", "lr=2 margin=5"]
    assert search.choose_overrides(CONTEST) is None
    assert search.list_test_runs(CONTEST, "heads") == []
    plan.finished |= {"lr=2 margin=4", "lr=2 margin=5"}
    assert search.choose_overrides(CONTEST) == ("lr=2", "margin=5")
    tested = search.list_test_runs(CONTEST, "whole")
    assert [(run.name, run.seed) for run in tested] == [  # type: ignore[attr-defined]
        ("lr=2 margin=5 frozen=false", seed) for seed in range(3)
    ]
    # a stored choice needs no search
    stored = with_stored_choices([CONTEST], [make_result("triplet", 0.5), make_result("triplet", 0.5, kind="whole")])
    assert search.list_candidates(stored[0]) == []
    assert search.choose_overrides(stored[0]) == ("optimizer.lr=1e-3",)
    assert with_stored_choices([CONTEST], [make_result("rll", 0.5)]) == [CONTEST]
    # without a parameter, the best rate is chosen
    assert search.choose_overrides(replace(CONTEST, values=())) == ("lr=2",)


def make_result(loss: str, recall: float, seed: int = 0, kind: str = "heads") -> ContestResult:
    """Make a result of 30 classes with 4 queries each, whose recall is a given one on average."""
    rng = np.random.default_rng(seed)
    sums = [np.clip(rng.normal(4 * recall, 1, 30), 0, 4).tolist() for _ in range(3)]
    return ContestResult(
        "emoji",
        kind,
        loss,
        ["optimizer.lr=1e-3"],
        {"optimizer.lr=1e-3": 0.5},
        [0, 1, 2],
        [4] * 30,
        {"recall@1": sums, "map@r": sums},
        {"nmi": [0.8, 0.8, 0.8]},
    )


def test_results_are_stored_and_replaced(tmp_path: Path) -> None:
    old = [make_result("rll", 0.5), make_result("nra", 0.4)]
    new = [make_result("rll", 0.6, seed=1)]
    merged = merge_results(old, new)
    assert [result.loss for result in merged] == ["nra", "rll"]
    assert merged[1] == new[0]
    file = tmp_path / "leaderboard.json"
    assert read_results(file) == []
    write_results(file, merged)
    assert read_results(file) == merged
    parts = tmp_path / "docs" / "leaderboard.json"
    assert store_results(parts, old[:1]) == old[:1]  # of two commands that end one after the other
    assert store_results(parts, new) == new
    assert store_results(parts, old[1:]) == read_results(parts) == merged
    file.write_text('[{"loss": 1}]')
    with pytest.raises(InputError, match="no results of a leaderboard"):
        read_results(file)


def test_results_of_other_test_classes_are_refused() -> None:
    line = r"^emoji: the stored results are of other test classes; --docs FOLDER stores these apart$"
    with pytest.raises(InputError, match=line):
        merge_results([make_result("rll", 0.5)], [replace(make_result("nra", 0.4), counts=[3] * 30)])


def test_a_seed_alone_has_no_deviation(tmp_path: Path) -> None:
    one = make_result("nra", 0.3, seed=1)
    one = replace(one, seeds=[0], sums={name: rows[:1] for name, rows in one.sums.items()}, values={"nmi": [0.8]})
    write_results(tmp_path / "leaderboard.json", [make_result("rll", 0.5), one])
    run_leaderboard(["--show", "--docs", str(tmp_path)])
    page = (tmp_path / "leaderboard.md").read_text()
    assert "1 to 3 seeds, 120 queries of 30 classes." in page
    (row,) = (line for line in page.splitlines() if line.startswith("| `nra` |"))
    assert row.split(" | ")[3] == "–"


@pytest.mark.parametrize("text", [None, "[]"])
def test_no_results_leave_the_readme_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{MARKERS[0]}\nold\n{MARKERS[1]}\n")
    if text is not None:
        (tmp_path / "leaderboard.json").write_text(text)
    with pytest.raises(SystemExit):
        run_leaderboard(["--show", "--docs", str(tmp_path), "--readme", str(readme)])
    assert "leaderboard.json: holds no results; the command without --show trains" in capsys.readouterr().err
    assert "old" in readme.read_text()
    assert not (tmp_path / "leaderboard.md").exists()


def test_a_list_of_photographs_may_have_any_name(tmp_path: Path) -> None:
    photos = tmp_path / "my {photos}, (1)=.csv"
    photos.write_text("path,label\n")
    contest, *_ = select_contests(read_leaderboard({"photographs": photos}), ["photographs"], ["rll"])
    assert compose(contest.training).dataset.root == str(photos)


def test_intervals_are_of_resampled_classes() -> None:
    """Against a plain loop; the difference of a result to itself is 0 for sure."""
    result, other = make_result("rll", 0.5), make_result("nra", 0.45, seed=1)
    rng = np.random.default_rng(5)
    means = [result.tested.mean_sums("map@r")[rng.integers(30, size=30)].sum() / 120 for _ in range(5000)]
    assert class_interval(result, "map@r") == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.01)
    assert class_interval(result, "map@r", result) == (0, 0)
    low, high = class_interval(other, "map@r", result)
    assert low < np.mean(other.seed_means("map@r")) - np.mean(result.seed_means("map@r")) < high
    with pytest.raises(InputError, match="tested on different classes"):
        class_interval(replace(result, counts=[3] * 30), "map@r", other)


def test_the_page_is_computed_from_the_stored_results(tmp_path: Path) -> None:
    stored = {
        "vector": "64 dimensions, cosine",
        "first weights": "random",
        "checkpoint": "the last one",
        "split": "test",
    }
    other = replace(make_result("nra", 0.3, seed=1), facts=stored)
    whole = [make_result("rll", 0.7, kind="whole"), make_result("rll", 0.8, kind="long")]
    results = [make_result("rll", 0.5), other, *whole]
    write_results(tmp_path / "leaderboard.json", results)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{MARKERS[0]}\nold\n{MARKERS[1]}\nafter\n")
    run_leaderboard(["--show", "--docs", str(tmp_path), "--readme", str(readme)])
    page = (tmp_path / "leaderboard.md").read_text()
    titles = ["## The whole network learns for 1,200 steps", "## The whole network learns\n", "## The heads learn"]
    assert sorted(titles, key=page.index) == titles
    heads = page.partition("## The heads learn")[2]
    assert heads.index("`rll`") < heads.index("`nra`")
    assert "3 seeds, 120 queries of 30 classes." in heads
    assert "heads, cosine (`nra`: 64 dimensions, cosine). First weights: " in heads  # the runs of nra stored theirs
    assert f"before\n{MARKERS[0]}\n{render_summary(results, BOARD.kinds)}\n{MARKERS[1]}\nafter\n" == readme.read_text()


def test_a_file_without_a_place_for_the_summary_is_refused_before_the_trainings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, problem in (("other.md", "no <!-- leaderboard -->"), ("none.md", "can't be read")):
        (tmp_path / "other.md").write_text("nothing")
        with pytest.raises(SystemExit):
            run_leaderboard(["--docs", str(tmp_path), "--readme", str(tmp_path / name)])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --readme {tmp_path / name}: {problem}")


@pytest.mark.thorough
@pytest.mark.pipeline  # it composes every training
def test_the_committed_page_is_that_of_the_committed_results(tmp_path: Path) -> None:
    (tmp_path / "leaderboard.json").write_text((ROOT / "docs/leaderboard.json").read_text())
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    run_leaderboard(["--show", "--docs", str(tmp_path), "--readme", str(tmp_path / "README.md")])
    assert (tmp_path / "leaderboard.md").read_text() == (ROOT / "docs/leaderboard.md").read_text()
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()


@pytest.mark.pipeline
def test_a_small_leaderboard_is_trained_and_continued(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load((ROOT / "dml/papers/reference/leaderboard.yaml").read_text())
    del content["kinds"]["long"]
    content["rates"] = ["optimizer.lr=1e-3", "optimizer.lr=1e-2"]
    content["losses"] = {"triplet": {"loss.loss.margin": [0.1, 0.2]}}
    small = tmp_path / "leaderboard.yaml"
    small.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(read_leaderboard, "__defaults__", (small,))
    made: list[int] = []
    small_values = [*SMALL, "evaluation.report={neighbors: 1, map: false}", f"dataset.root={small_emoji}"]

    def train_small_runs(runs: list[PlannedRun], *arguments: object) -> bool:
        made.append(len(runs))
        for run in runs:
            here("train", *run.train_arguments(Path()), *small_values)
        return False

    monkeypatch.setattr(contest_runs, "train_runs", train_small_runs)
    arguments = ["--outputs", str(tmp_path / "runs"), "--docs", str(tmp_path), "--seeds", "2", "--jobs", "1"]
    run_leaderboard(arguments)
    assert made == [2, 1, 1]  # two rates, the other margin at the better one, the second seed
    (entry,) = json.loads((tmp_path / "leaderboard.json").read_text())
    assert (entry["loss"], entry["seeds"], sum(entry["counts"])) == ("triplet", [0, 1], 111)
    assert len(entry["searched"]) == 4
    for row, value in zip(entry["sums"]["recall@1"], entry["values"]["nmi"], strict=True):
        assert 0 < sum(row) < 111
        assert 0 < value < 1
    run_leaderboard(arguments)
    assert made[3:] == [0, 0, 0]
    run_leaderboard([*arguments, "--kind", "whole"])  # the record of the search stays
    assert made[6:] == [0, 0, 2]
    stored = {result.kind: result for result in read_results(tmp_path / "leaderboard.json")}
    assert stored["heads"] == ContestResult(**entry)
    assert (stored["whole"].searched, stored["whole"].overrides) == ({}, entry["overrides"])
