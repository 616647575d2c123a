"""The threshold of a test: its choice, its errors by class, the rejection of unknown queries, and the report."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_tables import make_table
from report_runs import MakeRun
from sklearn.metrics import roc_auc_score

from dml.evaluation import evaluate
from dml.evaluation.threshold import (
    NearestItems,
    ThresholdSettings,
    choose_nearest_threshold,
    choose_pair_threshold,
    compute_threshold_errors,
    describe_choice,
    evaluate_threshold,
    find_calibration,
    find_nearest,
    find_nearest_threshold,
    judge_nearest,
    make_pairs,
)
from dml.metrics.pairs import LabeledPairs
from dml.metrics.verification import (
    PairVerification,
    compute_calibration_errors,
    equal_error_rate,
    fit_calibration,
    opis,
)
from dml.report.page import run_report
from dml.report.run import read_run
from dml.retrieval.rows import UnitEmbeddings
from dml.runtime.run_folder import RunFolder

pytest_plugins = ("report_runs",)


def make_rows(seed: int, size: int = 80, classes: int = 9, noise: float = 1.0) -> tuple[torch.Tensor, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=size)
    labels[0] = classes  # a class of one image
    rows = rng.normal(size=(classes + 1, 8))[labels] + noise * rng.normal(size=(size, 8))
    return torch.nn.functional.normalize(torch.from_numpy(rows), dim=1).float(), labels


def test_the_threshold_is_the_smallest_with_the_wanted_rate() -> None:
    rows, labels = make_rows(0, 150)
    pairs = LabeledPairs(rows, labels)
    similarities = (rows @ rows.T).clamp(-1, 1).numpy()
    listed = list(combinations(range(150), 2))
    different = np.array([similarities[i, j] for i, j in listed if labels[i] != labels[j]])
    chosen = choose_pair_threshold(pairs, fmr=0.05)
    assert (different >= np.float32(chosen)).mean() <= 0.05
    smaller = max(similarities[i, j] for i, j in listed if similarities[i, j] < np.float32(chosen))
    assert (different >= smaller).mean() > 0.05


def list_searches(rows: torch.Tensor, labels: Any, items: torch.Tensor, item_labels: Any, excluded: Any) -> Any:
    """The similarity of each search's nearest item, whether it was among all items, and whether the item is right."""
    similarities, found = (rows @ items.T).numpy(), []
    for query, label in enumerate(labels):
        others = [i for i in range(len(items)) if i not in excluded[query]]
        for is_known, searched in ((True, others), (False, [i for i in others if item_labels[i] != label])):
            best = max(searched, key=lambda i: similarities[query, i])
            found.append((float(similarities[query, best]), is_known, bool(item_labels[best] == label)))
    return found


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_default_threshold_has_the_wanted_share_of_wrong_ones_among_the_nearest(share: float) -> None:
    rows, labels = make_rows(0, 150, noise=0.6)
    searches = list_searches(rows, labels, rows, labels, np.arange(150)[:, None])
    nearest = find_nearest(LabeledPairs(rows, labels))
    np.testing.assert_allclose(sorted(zip(*nearest, strict=True)), sorted(searches), rtol=1e-6)
    chosen = choose_nearest_threshold(nearest, share)
    shares = {score: np.mean([not right for other, _, right in searches if other >= score]) for score, _, _ in searches}
    counts = {score: sum(other >= score for other, _, _ in searches) for score in shares}
    fitting = [score for score in shares if shares[score] <= share and counts[score] * share >= 1]
    assert chosen == pytest.approx(min(fitting))


@pytest.mark.parametrize(
    ("scores", "wrong", "threshold"),
    [
        (np.linspace(1, 0.1, 40), {39}, np.linspace(1, 0.1, 40)[-1]),  # 1 of 40
        (np.linspace(1, 0.1, 40), {0, 1, 2}, None),  # 3 of 40
        (np.linspace(1, 0.1, 19), set(), None),  # too few to show a twentieth
        (np.full(40, 0.5), {1, 2, 3}, None),  # equal ones pass together
        (np.r_[np.full(20, 0.9), np.full(20, 0.5)], {20, 30, 39}, 0.9),
    ],
)
def test_where_no_similarity_has_the_share_there_is_no_threshold(
    scores: Any, wrong: set[int], threshold: float | None
) -> None:
    is_right = np.array([i not in wrong for i in range(len(scores))])
    nearest = NearestItems(scores.astype(np.float32), np.ones_like(is_right), is_right)
    chosen = choose_nearest_threshold(nearest, share=0.05)
    assert chosen == (None if threshold is None else pytest.approx(threshold))


def test_errors_are_those_of_a_loop_over_pairs_and_classes() -> None:
    rows, labels = make_rows(2)
    similarities = (rows @ rows.T).numpy()
    metrics = compute_threshold_errors(LabeledPairs(rows, labels), 0.4)
    inside: dict[int, list[bool]] = {label: [] for label in labels}
    across: dict[int, list[bool]] = {label: [] for label in labels}
    for i, j in combinations(range(len(labels)), 2):
        passes = bool(similarities[i, j] >= np.float32(0.4))
        if labels[i] == labels[j]:
            inside[labels[i]].append(passes)
        else:
            across[labels[i]].append(passes)
            across[labels[j]].append(passes)
    fnmrs = [1 - np.mean(passes) for passes in inside.values() if passes]
    fmrs = [np.mean(passes) for passes in across.values()]
    fmr, fnmr = np.mean(np.concatenate([*across.values()])), 1 - np.mean(np.concatenate([*inside.values()]))
    expected = {"fmr": fmr, "fnmr": fnmr, "balanced_accuracy": 1 - (fmr + fnmr) / 2}
    expected |= {"fmr_median_class": np.median(fmrs), "fmr_worst_class": max(fmrs)}
    expected |= {"fnmr_median_class": np.median(fnmrs), "fnmr_worst_class": max(fnmrs)}
    assert metrics == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("with_gallery", [False, True])
def test_a_query_searches_all_items_and_those_of_other_classes(with_gallery: bool) -> None:
    rows, labels = make_rows(3)
    pairs, items, item_labels = LabeledPairs(rows, labels), rows, labels
    excluded = np.arange(80)[:, None]
    if with_gallery:
        items, item_labels = make_rows(4, 50)
        excluded = np.where(np.arange(80) < 50, np.arange(80), -1)[:, None]
        pairs = LabeledPairs(rows, labels, items, item_labels, excluded)
    score, known, right = map(np.array, zip(*list_searches(rows, labels, items, item_labels, excluded), strict=True))
    same = (score >= 0.7) & known
    metrics = judge_nearest(find_nearest(pairs), 0.7)
    assert metrics == pytest.approx(
        {
            "unknown_auroc": roc_auc_score(known, score),
            "known_accepted": (score >= 0.7)[known].mean(),
            "known_identified": ((score >= 0.7) & right)[known].mean(),
            "unknown_accepted": (score >= 0.7)[~known].mean(),
            "wrong_share": (~right[same]).mean(),
        }
    )
    assert 0.5 < metrics["unknown_auroc"] < 1
    assert judge_nearest(find_nearest(pairs), 2.0)["wrong_share"] == 0


def test_a_query_that_excludes_the_gallery_has_no_neighbor() -> None:
    rows, _ = make_rows(3)
    pairs = LabeledPairs(rows[:2], np.array([0, 1]), rows[2:3], np.array([0]), np.array([[-1], [0]]))
    nearest = find_nearest(pairs)
    assert len(nearest.scores) == 1  # the first query, in a gallery that holds its class
    assert judge_nearest(nearest, 0.5) == {}


def test_what_a_test_reports_depends_on_the_splits_that_it_has() -> None:
    tested, validated = LabeledPairs(*make_rows(6)), LabeledPairs(*make_rows(7))
    metrics, curves = evaluate_threshold("test", tested, validated, ThresholdSettings(wrong_share=0.8))
    assert [*curves] == ["test", "val"]
    alone, curve = evaluate_threshold("test", tested, None, ThresholdSettings())
    assert alone == {name: metrics[name] for name in alone}
    assert {name.removeprefix("threshold/") for name in alone} >= {"eer", "fnmr@1e-3", "opis", "unknown_auroc"}
    assert not {"threshold/similarity", "threshold/nearest_similarity", "threshold/ece"} & {*alone}
    assert "threshold/calibration_slope" not in alone
    np.testing.assert_array_equal(curve["test"], curves["test"])
    on_val, _ = evaluate_threshold("val", validated, validated, ThresholdSettings(wrong_share=0.8))
    assert on_val["threshold/similarity"] == metrics["threshold/similarity"]
    assert "threshold/fmr" not in on_val
    assert on_val["threshold/val_wrong_share"] == metrics["threshold/val_wrong_share"]
    sure, _ = evaluate_threshold("test", tested, validated, ThresholdSettings(wrong_share=1e-6))
    assert sure["threshold/fmr"] == metrics["threshold/fmr"]
    assert not {"threshold/nearest_similarity", "threshold/wrong_share"} & {*sure}
    one, _ = evaluate_threshold("test", tested, validated, ThresholdSettings(wrong_share=0.8, fmr=None))
    assert one["threshold/similarity"] == one["threshold/nearest_similarity"]
    without, curves_without = evaluate_threshold("test", tested, validated, ThresholdSettings(1e-6, fmr=None))
    assert without["threshold/wanted_wrong_share"] == 1e-6
    assert not {"threshold/similarity", "threshold/fmr", "threshold/wrong_share"} & {*without}
    assert without["threshold/ece"] == metrics["threshold/ece"]
    assert [*curves_without] == [*curves]
    assert on_val["threshold/calibration_slope"] == metrics["threshold/calibration_slope"]
    assert "threshold/ece" not in on_val
    one_class = LabeledPairs(tested.embeddings, np.zeros(80))
    assert evaluate_threshold("test", one_class, validated, ThresholdSettings()) == ({}, {})
    fmr, fnmr = curves["test"]
    assert (fmr[0], fnmr[0]) == (1, 0)
    assert (np.diff(fmr) < 0).all()
    assert (np.diff(fnmr) >= 0).all()


def test_probabilities_are_fitted_on_one_split_and_judged_on_the_other() -> None:
    tested, validated = LabeledPairs(*make_rows(6)), LabeledPairs(*make_rows(7))
    metrics, _ = evaluate_threshold("test", tested, validated, ThresholdSettings())
    metrics = {name.removeprefix("threshold/"): value for name, value in metrics.items()}
    calibration = fit_calibration(validated.counts)
    assert find_calibration(metrics) == calibration
    for suffix, prior in (("", None), ("_balanced", 0.5)):
        errors, _ = compute_calibration_errors(tested.counts, calibration, prior)
        assert {f"{name}{suffix}": value for name, value in errors.items()}.items() <= metrics.items()
    assert find_calibration(metrics | {"calibration_prior": 1.0}) is None
    assert find_calibration(dict.fromkeys(("similarity", "fmr", "calibration_slope"), 1.0)) is None


def test_only_one_list_has_pairs() -> None:
    rows, labels = make_rows(8, 20)
    table = make_table(labels)
    pairs = make_pairs(UnitEmbeddings.normalize(rows), table)
    assert pairs is not None
    np.testing.assert_array_equal(pairs.labels, labels)
    assert make_pairs(UnitEmbeddings.normalize(rows), replace(table, benchmark=np.zeros(20, dtype=np.int64))) is None


def test_the_metrics_of_pairs_are_computed_on_request() -> None:
    rows, labels = make_rows(9)
    metrics = evaluate(rows, labels, metrics=["recall", "eer", "fnmr@1e-2", "opis"])
    verification = PairVerification(LabeledPairs(rows, labels))
    assert metrics["level0/eer"] == equal_error_rate(verification.rates)
    assert metrics["level0/opis"] == opis(verification.pairs, verification.rates)
    assert "level0/eer" not in evaluate(rows, labels)
    other = evaluate(rows[:40], labels[:40], rows[40:], labels[40:], metrics=["eer"])
    across = PairVerification(LabeledPairs(rows[:40], labels[:40], rows[40:], labels[40:]))
    assert other["level0/eer"] == equal_error_rate(across.rates)


def test_the_thresholds_of_two_images_and_of_the_nearest_are_told_apart() -> None:
    metrics = {"wanted_fmr": 0.01, "wanted_wrong_share": 0.05, "similarity": 0.5, "nearest_similarity": 0.7}
    assert describe_choice(metrics) == "for a false match rate of 1 %"
    assert describe_choice(metrics, of_nearest=True).endswith("the nearest is 5 %")
    assert find_nearest_threshold(metrics) == 0.7
    del metrics["nearest_similarity"]
    assert find_nearest_threshold(metrics) is None


def test_the_report_draws_the_curves_and_the_threshold(make_run: MakeRun) -> None:
    run: Path = make_run("run")
    assert 'id="threshold"' not in run_report(read_run(run))
    folder = RunFolder(run)
    tested, validated = LabeledPairs(*make_rows(6)), LabeledPairs(*make_rows(7))
    metrics, curves = evaluate_threshold("test", tested, validated, ThresholdSettings(fmr=0.03))
    folder.write_threshold_curves({name: curve.tolist() for name, curve in curves.items()})
    folder.write_metrics({**folder.metrics(), **metrics})
    page = run_report(read_run(run))
    section = page[page.index('id="threshold"') : page.index('id="retrieval"')]
    assert f"<strong>{metrics['threshold/similarity']:.4f}</strong>" in section
    assert "for a false match rate of 3 %" in section
    (errors,) = re.findall(r"<figure.*?</figure>", section, re.DOTALL)
    assert errors.count('class="line"') == errors.count('class="dots"') == 2
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", "".join(re.findall(r' d="(M[^"]*)"', section)))]
    assert 0 <= min(numbers) <= max(numbers) <= 100
    for name in ("eer", "ece_balanced"):
        assert f"{100 * metrics[f'threshold/{name}']:.1f} %" in section
    without, _ = evaluate_threshold("test", tested, validated, ThresholdSettings(1e-6, fmr=None))
    plain = {name: value for name, value in folder.metrics().items() if not name.startswith("threshold/")}
    folder.write_metrics({**plain, **without})
    assert "There is no threshold" in run_report(read_run(run))
