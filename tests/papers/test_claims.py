"""The papers' claims: what is trained for them, what is chosen, the verdicts, and the page."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from omegaconf import OmegaConf
from PIL import Image

from dml.evaluation.names import full_metric_name
from dml.ops.configuration.nested import flat
from dml.ops.errors import InputError
from dml.papers.claims import claim_runs
from dml.papers.claims.claim_results import ClaimResults, validation_folder
from dml.papers.claims.claims_command import run_claims
from dml.papers.claims.claims_figure import draw_outcomes
from dml.papers.claims.claims_on_dataset import ClaimsOnDataset, select_datasets
from dml.papers.claims.claims_page import insert_summary
from dml.papers.claims.definitions import Arm, read_claims
from dml.papers.claims.tuning import Tuning, group_by_seed, validation_command
from dml.papers.claims.verdicts import Outcome, Verdict, combine_verdicts, compute_outcomes, decide
from dml.papers.experiments import compose
from dml.papers.plans import Plan, PlannedRun
from dml.papers.tables.paper_tables import Training

pytestmark = pytest.mark.pipeline

CLAIMS, PHOTOGRAPHS = read_claims().on_datasets


def values(name: str) -> dict[str, Any]:
    config = compose(CLAIMS.arms[name].training)
    config.optimizer.lr = float(config.optimizer.lr)  # of the model, in some arms, and the same number in others
    return flat(OmegaConf.to_container(config, resolve=False))


DIFFER = [
    ("rll", "rll_h", []),
    ("rll", "rll_h_alone", ["model.heads"]),
    ("rll", "m_1.2", ["loss.margin"]),
    ("rll", "t_n_0", ["loss.negative_temperature"]),
    ("rll", "ck_12x5", ["sampler.classes_per_batch", "sampler.images_per_class"]),
    *(("rll", name, ["scheduler.loss"]) for name in ("t1_2", "t1_18", "t2_2", "t2_18")),
    ("nra", "lifted", ["loss"]),
    ("nra", "triplet", ["loss"]),
    ("nra", "n_pair_loss", ["loss", "sampler"]),
    ("lns_drift", "lns", ["loss.weights.drift"]),
    ("lns_drift", "n_pair", ["loss", "sampler", "stages", "trainer.max_steps"]),
    ("lns_longer", "rnn", ["stages.longer", "stages.rnn"]),
    ("rnn", "rnn_random", ["stages.rnn.recurrent.recurrent.order"]),
    *(
        ("happier", name, ["loss"])
        for name in ("happier_f", "h_ap", "tl_sh", "nsm", "smooth_ap", "sum_tl_sh", "sum_nsm", "csl")
    ),
]


@pytest.mark.parametrize(("one", "other", "keys"), DIFFER, ids=[f"{one}-{other}" for one, other, _ in DIFFER])
def test_arms_differ_in_what_is_compared_alone(one: str, other: str, keys: list[str]) -> None:
    left, right = values(one), values(other)
    differing = {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}
    assert {path for path in differing if not any(f"{path}.".startswith(f"{own}.") for own in keys)} == set()
    assert all(any(f"{path}.".startswith(f"{own}.") for path in differing) for own in keys)


def test_all_ten_claims_are_there_and_can_be_judged() -> None:
    assert [claim.number for claim in CLAIMS.claims] == list(range(1, 11))
    assert {arm.name for arm in CLAIMS.used_arms} == set(CLAIMS.arms)
    for claim in CLAIMS.claims:
        for comparison in claim.comparisons:
            for arm in comparison.better.arms + comparison.worse.arms:
                config = compose(arm.training)
                assert comparison.metric.partition("@")[0] in config.evaluation.metrics
                assert config.evaluation.selection == "last"
                assert config.trainer.val_check_interval is None
                assert config.dataset.name == "emoji"
                assert not arm.prefix or arm.prefix.removeprefix("heads/") in config.model.heads
    assert [claim.number for claim in PHOTOGRAPHS.claims] == [1, 2, 3, 4, 6, 9, 10]
    for arm in PHOTOGRAPHS.used_arms:
        config = compose(arm.training)
        assert config.dataset.name == "grocery"
        assert config.trainer.max_steps == (240 if arm.training.experiment == "claims/nra" else 160)


def test_quick_claims_are_the_same_with_fewer_steps() -> None:
    quick, _ = read_claims(shortened=8).on_datasets
    whole, short = (compose(claims.arms["rll"].training) for claims in (CLAIMS, quick))
    assert (whole.trainer.max_steps, short.trainer.max_steps) == (560, 70)
    whole, short = (compose(claims.arms["rnn"].training) for claims in (CLAIMS, quick))
    assert [stage.trainer.max_steps for stage in whole.stages.values()] == [1360, 240, 480]
    assert [stage.trainer.max_steps for stage in short.stages.values()] == [170, 30, 60]


def test_what_is_compared_takes_the_same_choice_or_one_of_its_own() -> None:
    for name in ("rll_h", "m_1.2", "t_n_0", "ck_12x5", "t1_2", "t1_18", "t2_2", "t2_18"):
        assert CLAIMS.arms[name].parent == "rll"
    for arm in CLAIMS.arms.values():
        proxies = any("optimizer.loss" in override for own in arm.alternatives for override in own)
        expected = 3 if proxies else 2  # where proxies begin is one thing more to choose
        assert len(arm.alternatives) == expected or (arm.parent and not arm.alternatives) or arm.name == "h_ap"
    rates = {override for own in CLAIMS.arms["happier"].alternatives for override in own if "optimizer.lr" in override}
    assert rates == set(CLAIMS.arms["h_ap"].training.overrides) - {"loss=h_ap"}  # its ablation


PRINTED = {
    1: [78.6 - 74.8, 78.6 - 74.8],
    2: [79.8 - 79.1],
    3: [79.8 - 78.8],
    4: [79.8 - 79.0],
    5: [0.627**0.5 - 0.008**0.5],
    6: [71.9 - 57.2, 71.9 - 61.6, 71.9 - 63.6],
    7: [71.4 - 66.4, 73.5 - 66.4, 73.5 - 71.4],
    8: [74.3 - 73.5, 74.3 - 70.2],
    10: [54.3 - 53.1],
}


def test_the_papers_own_differences(tmp_path: Path) -> None:
    tuning = Tuning(CLAIMS.arms, Plan(tmp_path, 5), ClaimResults(tmp_path / "claims.json"))
    found = {claim.number: compute_outcomes(claim, tuning) for claim in CLAIMS.claims}
    for number, printed in PRINTED.items():
        assert [one.printed_difference for one in found[number]] == pytest.approx(printed), number
    of_nine = {(one.comparison.worse.name, one.comparison.metric): one.printed_difference for one in found[9]}
    assert len(of_nine) == 6 * 3 + 3
    assert of_nine["csl", "h_ap"] == pytest.approx(59.4 - 52.8)
    assert of_nine["smooth_ap", "recall@1"] == pytest.approx(81.8 - 81.3)
    assert all(one.verdict == Verdict.OPEN and one.interval is None for own in found.values() for one in own)


@pytest.mark.parametrize(
    ("differences", "within", "verdict"),
    [
        # mean 3, standard deviation 1.58: half the interval is 2.776 x 1.58 / 5^0.5 = 1.96
        ([1, 2, 3, 4, 5], 0, Verdict.CONFIRMED),
        ([-1, -2, -3, -4, -5], 0, Verdict.REVERSED),
        ([-1, 0, 1, 2, 3], 0, Verdict.NOT_CONFIRMED),  # from -0.96
        ([-1, 0, 1, 2, 3], 1, Verdict.CONFIRMED),
        ([-5, -4, -3, -2, -1], 1, Verdict.REVERSED),  # to -1.04
        ([-5, -4, -3, -2, -0.5], 1, Verdict.NOT_CONFIRMED),
        ([0, 0, 0, 0, 0], 0, Verdict.NOT_CONFIRMED),
        ([9, 9, 9, 9], 0, Verdict.OPEN),
        ([], 0, Verdict.OPEN),
    ],
)
def test_a_comparisons_verdict(differences: list[float], within: float, verdict: Verdict) -> None:
    assert decide(differences, within) == verdict


def test_a_claims_verdict() -> None:
    confirmed, no, reversed_, still_open = Verdict.CONFIRMED, Verdict.NOT_CONFIRMED, Verdict.REVERSED, Verdict.OPEN
    assert combine_verdicts([confirmed, confirmed]) == confirmed
    assert combine_verdicts([reversed_, reversed_]) == reversed_
    assert combine_verdicts([confirmed, reversed_]) == no
    assert combine_verdicts([confirmed, no]) == no
    assert combine_verdicts([confirmed, still_open]) == still_open


def leave(folder: Path, **metrics: float) -> None:
    """A finished run's metrics.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps({name.replace("_at_", "@"): own for name, own in metrics.items()}))


def tuned(alternatives: Sequence[str], **more: str) -> Arm:
    return Arm("rll", Training("claims/rll"), alternatives=tuple((own,) for own in alternatives), **more)


def test_only_the_validation_classes_choose(tmp_path: Path) -> None:
    arm = tuned(["optimizer.lr=2e-4", "optimizer.lr=1e-3"], tuning_metric="recall@1")
    ablation = Arm("t_n_0", Training("claims/rll", ("loss.negative_temperature=0",)), parent="rll")
    tuning = Tuning({"rll": arm, "t_n_0": ablation}, Plan(tmp_path, 3), ClaimResults(tmp_path / "claims.json"))
    slow, fast = tuning.list_candidates(arm)
    assert slow.run.seed == fast.run.seed == 0
    for one, on_test, on_val in ((slow, 0.9, 0.5), (fast, 0.1, 0.6)):
        assert (
            tuning.selected_overrides(arm) is tuning.selected_overrides(ablation) is tuning.list_runs(ablation) is None
        )
        leave(one.run.folder, **{"level0/recall@1": on_test})
        assert tuning.selected_overrides(arm) is None  # a test says nothing
        leave(validation_folder(one.run), **{"level0/recall@1": on_val})
    slow, fast = tuning.list_candidates(arm)
    assert (slow.value, fast.value) == (0.5, 0.6)
    assert tuning.selected_overrides(arm) == tuning.selected_overrides(ablation) == ("optimizer.lr=1e-3",)
    runs = tuning.list_runs(arm)
    assert runs is not None
    assert [run.seed for run in runs] == [0, 1, 2]
    assert runs[0].folder == fast.run.folder  # made once
    found = tuning.list_runs(ablation)
    assert found is not None
    assert found[0].training.overrides == ("loss.negative_temperature=0", "optimizer.lr=1e-3")
    assert [arm.name for arm in tuning.order_by_parent([ablation])] == ["rll", "t_n_0"]


def test_an_alternative_is_validated_by_its_last_checkpoint(tmp_path: Path) -> None:
    run = PlannedRun(Training("claims/rll"), 0, tmp_path)
    last = f"checkpoint={tmp_path / 'checkpoints' / 'last.ckpt'}"
    assert validation_command(run) == ["evaluate", last, "split=val", f"hydra.run.dir={tmp_path / 'val'}"]


def test_seeds_of_all_come_before_the_next(tmp_path: Path) -> None:
    runs = [
        PlannedRun(Training("claims/rll"), seed, tmp_path / name / str(seed)) for name in "aba" for seed in range(2)
    ]
    assert [[run.folder.parts[-2:] for run in own] for own in group_by_seed(runs)] == [
        [("a", "0"), ("b", "0")],
        [("a", "1"), ("b", "1")],
    ]


def test_a_length_for_a_training_that_no_arm_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("setting: s\ndatasets: {d: {steps: {rrl: 5}}}\narms: {a: rll}\nclaims: {}")
    with pytest.raises(InputError, match="d: steps: no arm trains rrl"):
        read_claims(path)


BROKEN = [
    ("arms: {a: x}\nclaims: {1: {}}", "no comparisons"),
    ("arms: {a: {run: x, like: b}}\nclaims: {}", "arm a: like: b is no arm"),
    ("arms: {a: {run: x, tune: [y=1]}}\nclaims: {}", "arm a: tune and by go together"),
    ("arms: {a: x}\nclaims: {1: {comparisons: [{better: a, worse: b, metric: h_ap}]}}", "claim 1: b is no"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_fault_in_the_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(f"setting: s\ndatasets: {{emoji: {{}}}}\n{text}")
    with pytest.raises(InputError, match=message):
        read_claims(path)


def test_faults_of_a_command_are_one_line(tmp_path: Path) -> None:
    results = ClaimResults(tmp_path / "claims.json")
    tested = [
        ClaimsOnDataset(claims, Tuning(claims.arms, Plan(tmp_path, 5), results)) for claims in (CLAIMS, PHOTOGRAPHS)
    ]
    with pytest.raises(InputError, match="claim 11: there is none; there are 1, 2,"):
        select_datasets(tested, None, [11])
    with pytest.raises(InputError, match=f"--data {tmp_path}: no grocery/grocery.csv in it"):
        select_datasets(tested, tmp_path, [1])
    assert [[claim.number for claim in one.claims.claims] for one in select_datasets(tested, None, [1, 5])] == [[1, 5]]
    results.path.write_text('[{"training": "claims/rll"}]')
    with pytest.raises(InputError, match=r"claims.json: no results of the claims \(KeyError\('seed'\)\); delete it"):
        ClaimResults(results.path)


def test_stored_results_of_another_configuration_are_not_those_of_a_run(tmp_path: Path) -> None:
    (run,) = Plan(tmp_path, 1).list_runs(Training("claims/rll"))
    entry = {"training": "claims/rll", "seed": 0, "split": "test", "configuration": run.configuration}
    file = tmp_path / "claims.json"
    file.write_text(json.dumps([entry | {"metrics": {"h_ap": 0.5}}]))
    assert ClaimResults(file).find_metrics(run, "test") == {"h_ap": 0.5}
    file.write_text(json.dumps([entry | {"metrics": {"h_ap": 0.5}, "configuration": "0123456789ab"}]))  # other steps
    assert ClaimResults(file).find_metrics(run, "test") is None


def test_two_commands_at_once_keep_the_results_of_both(tmp_path: Path) -> None:
    first, second = Plan(tmp_path, 2).list_runs(Training("claims/rll"))
    file = tmp_path / "claims.json"
    one, other = ClaimResults(file), ClaimResults(file)
    for results, run, value in ((one, first, 0.5), (other, second, 0.25)):
        leave(run.folder, h_ap=value)
        assert results.find_metrics(run, "test") == {"h_ap": value}
    one.write()
    other.write()
    assert [entry["metrics"] for entry in json.loads(file.read_text())] == [{"h_ap": 0.5}, {"h_ap": 0.25}]


class Invented:
    """Stands in for the processes: leaves metrics that are functions of the run, and says what was made."""

    def __init__(self, fails: str = "nothing") -> None:
        self.made: list[PlannedRun] = []
        self.validated = 0
        self.fails = fails

    def train(
        self, runs: Sequence[PlannedRun], data: Path, print_line: Callable[[str], None], jobs: int, start: Any
    ) -> bool:
        fine = [run for run in runs if self.fails not in " ".join(run.training.overrides)]
        for run in fine:
            assert not run.is_finished
            self.made.append(run)
            (run.folder / "checkpoints").mkdir(parents=True)
            leave(run.folder, **self.metrics(run))
        return len(fine) < len(runs)

    def forks(self, commands: Sequence[Sequence[str]], print_line: Callable[[str], None], jobs: int = 1) -> bool:
        for command in commands:
            script, checkpoint, split, folder = command
            assert (script, split) == ("evaluate", "split=val")
            assert Path(checkpoint.partition("=")[2]).parent.is_dir()
            where = Path(folder.partition("=")[2])
            assert where.parent.joinpath("metrics.json").exists()
            leave(where, **{"level0/map@r": 0.7, "h_ap": 0.4})
            self.validated += 1
        return False

    @staticmethod
    def metrics(run: PlannedRun) -> dict[str, float]:
        """Of the test: T_n = 0 is 2 to 4 points worse, head H about 10, and all else is alike."""
        worse = 0.02 + 0.005 * run.seed if "loss.negative_temperature=0" in run.training.overrides else 0.0
        worse += 0.1 if "model.heads=[H]" in run.training.overrides else 0.0
        at = 0.5 + 0.01 * run.seed
        found = {full_metric_name(metric): at - worse for metric in ("recall@1", "h_ap", "asi", "ndcg")}
        return found | {"heads/H/level0/recall@1": at - worse - 0.1 + 0.001 * run.seed}


def write_claims(monkeypatch: pytest.MonkeyPatch, invented: Invented, tmp_path: Path, *arguments: str) -> str:
    """Runs it -> the page."""
    monkeypatch.setattr(claim_runs, "train_runs", invented.train)
    monkeypatch.setattr(claim_runs, "run_forks", invented.forks)
    docs = tmp_path / "docs"
    docs.mkdir(exist_ok=True)
    if not (docs / "results.md").exists():
        (docs / "results.md").write_text("# x\n<!-- claims -->\nold\n<!-- /claims -->\n## y\n")
    places = ["--outputs", str(tmp_path / "outputs"), "--docs", str(docs)]
    run_claims([*places, *arguments])
    assert (docs / "claims.json").exists()
    return (docs / "claims.md").read_text(encoding="utf-8")


def test_the_whole_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    invented = Invented()
    page = write_claims(monkeypatch, invented, tmp_path)
    made = {run.folder for run in invented.made}
    alternatives = [one for arm in CLAIMS.arms.values() for one in arm.alternatives]
    tuned_arms = sum(bool(arm.alternatives) for arm in CLAIMS.arms.values())
    trainings = len(CLAIMS.arms) - 1  # rll_h is a part of rll
    assert len(invented.made) == len(made) == 5 * trainings + len(alternatives) - tuned_arms
    assert invented.validated == len(alternatives)
    later = [run.seed for run in invented.made if run.seed]
    assert later == sorted(later)
    assert not list((tmp_path / "outputs").rglob("checkpoints"))
    assert f"{5 * trainings} runs on emoji are done, and none is missing." in page
    summary = [line for line in page.split("## 1.", 1)[0].splitlines() if " | emoji | " in line]
    assert [line.rsplit("|", 2)[1].strip() for line in summary] == [
        "**confirmed**",
        "**not confirmed**",
        "**confirmed**",
        *["**not confirmed**"] * 7,
    ]
    # T_n = 0: 2, 2.5, 3, 3.5, 4 points worse, sd 0.79, half the interval 2.776 x 0.79 / 5^0.5
    assert "| rll – t_n_0, recall@1 | +1.0 | +3.0 ± 1.0 | 5 | **confirmed** |" in page
    assert "| t_n_0 | `rll loss.negative_temperature=0` | 560 | as rll | 49.0 ± " in page
    assert "| rll | `rll` | 560 | `optimizer.lr=5e-4` (70.0 on val) |" in page
    assert "| rnn | `stages.rnn.recurrent.recurrent.order=farthest_first` | map@r | 70.0 |  |" in page
    results = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    assert results.startswith("# x\n<!-- claims -->\n|")
    assert results.endswith("|\n<!-- /claims -->\n## y\n")
    assert "old" not in results
    assert all((tmp_path / "docs" / "images" / "claims" / f"{number}_emoji.png").exists() for number in range(1, 11))

    again = Invented()
    assert write_claims(monkeypatch, again, tmp_path) == page
    assert not again.made
    assert not again.validated

    shutil.rmtree(tmp_path / "outputs")
    assert write_claims(monkeypatch, again, tmp_path, "--show") == page  # of claims.json alone
    assert write_claims(monkeypatch, again, tmp_path) == page
    assert not again.made


def test_a_failed_alternative_keeps_its_arms_from_training_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invented = Invented(fails="optimizer.lr=5e-4")
    with pytest.raises(SystemExit) as end:
        write_claims(monkeypatch, invented, tmp_path, "--only", "1,8")
    assert end.value.code == 2
    assert "error: not trained, as an alternative failed: rll, rll_h, rll_h_alone, rnn, lns_longer, rnn_random" in (
        capsys.readouterr().err
    )
    assert {run.seed for run in invented.made} == {0}


def test_a_page_has_a_place_for_the_summary() -> None:
    with pytest.raises(InputError, match=r"docs/results.md: no <!-- claims --> and <!-- /claims -->"):
        insert_summary("<!-- claims -->", "")


def test_a_figure_is_a_function_of_its_numbers(tmp_path: Path) -> None:
    comparisons = CLAIMS.claims[8].comparisons
    shown = [
        Outcome(own, {seed: row - 3.0 + 0.3 * seed for seed in range(row)}, None)
        for row, own in enumerate([*comparisons[:4], *comparisons[-3:]])
    ]
    draw_outcomes(shown, tmp_path / "a.png")
    draw_outcomes(shown, tmp_path / "new" / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "new" / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
        assert image.width == 1200


def test_the_repositorys_page_has_it_too() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "\n<!-- claims -->\nx\n<!-- /claims -->\n" in insert_summary(results, "x")


@pytest.mark.thorough
def test_the_repositorys_page_is_that_of_its_results(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "claims.json", tmp_path)
    run_claims(["--show", "--docs", str(tmp_path), "--outputs", str(tmp_path / "no_runs")])
    assert (tmp_path / "claims.md").read_text(encoding="utf-8") == (ROOT / "docs" / "claims.md").read_text(
        encoding="utf-8"
    )
    assert (tmp_path / "claims.json").read_text() == (ROOT / "docs" / "claims.json").read_text()
