"""The papers' claims: what is trained for them, the verdicts, and the page."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from PIL import Image

from dml.runtime.configuration import flat
from dml.studies.claims import (
    Outcome,
    Verdict,
    combine_verdicts,
    decide,
    draw_outcomes,
    list_comparisons,
    render_claims,
)
from dml.studies.claims import (
    test_claims as compute_claims,
)
from dml.studies.experiments import compose
from dml.studies.results import Result, Results
from dml.studies.study import REFERENCE, Study, list_compared_rows, read_study

pytestmark = pytest.mark.pipeline

STUDY = read_study(REFERENCE / "claims.yaml")
CELLS = {cell.row: cell for cell in STUDY.cells if cell.dataset == "emoji"}


def values(row: str) -> dict[str, Any]:
    config = compose(CELLS[row].training)
    config.optimizer.lr = float(config.optimizer.lr)  # of the model, in some rows, and the same number in others
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
def test_rows_differ_in_what_is_compared_alone(one: str, other: str, keys: list[str]) -> None:
    left, right = values(one), values(other)
    differing = {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}
    assert {path for path in differing if not any(f"{path}.".startswith(f"{own}.") for own in keys)} == set()
    assert all(any(f"{path}.".startswith(f"{own}.") for path in differing) for own in keys)


def test_all_ten_claims_are_there_and_can_be_judged(tmp_path: Path) -> None:
    claims = STUDY.content["claims"]
    assert list(claims) == list(range(1, 11))
    assert {row for claim in claims.values() for row in list_compared_rows(claim)} == set(CELLS)
    for claim in claims.values():
        metrics = {comparison.metric.partition("@")[0] for comparison in list_comparisons(claim)}
        for row in list_compared_rows(claim):
            config = compose(CELLS[row].training)
            assert metrics <= set(config.evaluation.metrics)
            assert config.evaluation.selection == "last"
            assert config.trainer.val_check_interval is None
            assert config.dataset.name == "emoji"
            assert not CELLS[row].part or CELLS[row].part.removeprefix("heads/") in config.model.heads
    (tmp_path / "grocery").mkdir()
    (tmp_path / "grocery" / "grocery.csv").write_text("path,label\n")
    both = read_study(REFERENCE / "claims.yaml", data=tmp_path)
    photographs = [cell for cell in both.selected if cell.dataset == "photographs"]
    of_both = [claim.number for claim in compute_claims(both, Results([])) if "photographs" in claim.outcomes]
    assert of_both == ["1", "2", "3", "4", "6", "9", "10"]
    for cell in photographs:
        config = compose(cell.training)
        assert config.dataset.name == "grocery"
        assert config.trainer.max_steps == (240 if cell.training.experiment == "claims/nra" else 160)


def test_what_is_compared_takes_the_same_choice_or_one_of_its_own() -> None:
    for row in ("rll_h", "m_1.2", "t_n_0", "ck_12x5", "t1_2", "t1_18", "t2_2", "t2_18"):
        assert CELLS[row].choice_from == ("emoji", "", "rll")
    alternatives = {row: cell.search.steps[0] if cell.search else () for row, cell in CELLS.items()}
    for row, cell in CELLS.items():
        has_proxies = any("optimizer.loss" in override for one in alternatives[row] for override in one)
        expected = 3 if has_proxies else 2  # where proxies begin is one thing more to choose
        assert len(alternatives[row]) == expected or (cell.choice_from and not alternatives[row]) or row == "h_ap"
    rates = {override for one in alternatives["happier"] for override in one if "optimizer.lr" in override}
    assert rates == set(CELLS["h_ap"].training.overrides) - {"loss=h_ap"}  # its ablation


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


def test_the_papers_own_differences() -> None:
    found = {claim.number: claim.outcomes["emoji"] for claim in compute_claims(STUDY, Results([]))}
    for number, printed in PRINTED.items():
        assert [one.printed for one in found[str(number)]] == pytest.approx(printed), number
    of_nine = {(one.comparison.worse, one.comparison.metric): one.printed for one in found["9"]}
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


def invent(study: Study, seeds: int = 5) -> Results:
    """T_n = 0 is 2 to 4 points worse, head H about 10, and all else is alike."""
    results = []
    for cell in study.cells:
        for seed in range(seeds):
            worse = 0.02 + 0.005 * seed if cell.row == "t_n_0" else 0.0
            worse += 0.1 - 0.001 * seed if cell.row in ("rll_h", "rll_h_alone") else 0.0
            metrics = {cell.find_metric(f"level0/{name}"): 0.5 + 0.01 * seed - worse for name in ("recall@1", "map@r")}
            metrics |= {cell.find_metric(name): 0.5 + 0.01 * seed for name in ("h_ap", "asi", "ndcg")}
            results.append(Result(*cell.key, seed=seed, overrides="a=1", configuration=cell.row, metrics=metrics))
        tried = [" ".join(one) for one in cell.search.steps[0]] if cell.search else []
        results += [Result(*cell.key, stage="search", overrides=one, metrics={"score": 0.7}) for one in tried]
    return Results(results)


def test_the_page_has_the_verdicts() -> None:
    page = render_claims(STUDY, invent(STUDY))
    summary = [line.split(" | ") for line in page.split("## 1.", 1)[0].splitlines() if re.match(r"\| \d", line)]
    yes, no = "**confirmed**", "**not confirmed**"
    assert [cells[2] for cells in summary] == [yes, no, yes, *[no] * 7]
    # T_n = 0: 2, 2.5, 3, 3.5, 4 points worse, sd 0.79, half the interval 2.776 x 0.79 / 5^0.5
    assert "| rll – t_n_0, recall@1 | +1.0 | **+3.0 ± 1.0** |" in page
    assert "| t_n_0 | `rll loss.negative_temperature=0` | 560 | as rll | 49.0 ± " in page
    assert "| rll | `rll` | 560 | `optimizer.lr=5e-4` (70.0) |" in page
    few = render_claims(STUDY, invent(STUDY, seeds=2))
    assert "| rll – t_n_0, recall@1 | +1.0 | +2.2 ± 3.2 (open) |" in few


def test_a_figure_is_a_function_of_its_numbers(tmp_path: Path) -> None:
    comparisons = list_comparisons(STUDY.content["claims"][9])
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
