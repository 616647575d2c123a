"""The threshold of a test: its choice, its errors by class, the rejection of unknown queries, and the report."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from report_runs import MakeRun
from sklearn.metrics import roc_auc_score

from dml.data.table import ImageTable
from dml.evaluation import evaluate
from dml.evaluation.report import read_run, run_report
from dml.evaluation.threshold.open_set import find_nearest_known, reject_unknown
from dml.evaluation.threshold.stored_calibration import find_calibration
from dml.evaluation.threshold.threshold_choice import (
    ThresholdSettings,
    choose_threshold,
    compute_threshold_errors,
    make_pairs,
)
from dml.evaluation.threshold.threshold_evaluation import evaluate_threshold
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.metrics.pair_calibration import compute_calibration_errors, fit_calibration
from dml.metrics.pair_counts import LabelledPairs
from dml.metrics.pair_verification import PairVerification, equal_error_rate, opis
from dml.ops.errors import InputError
from dml.ops.run_folders.run_folder import RunFolder

pytest_plugins = ("report_runs",)


def make_rows(seed: int, size: int = 80, classes: int = 9) -> tuple[torch.Tensor, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=size)
    labels[0] = classes  # a class of one image
    rows = rng.normal(size=(classes + 1, 8))[labels] + rng.normal(size=(size, 8))
    return torch.nn.functional.normalize(torch.from_numpy(rows), dim=1).float(), labels


def test_the_threshold_is_the_smallest_with_the_wanted_rate() -> None:
    rows, labels = make_rows(0, 150)
    pairs = LabelledPairs(rows, labels)
    similarities = (rows @ rows.T).clamp(-1, 1).numpy()
    listed = list(combinations(range(150), 2))
    different = np.array([similarities[i, j] for i, j in listed if labels[i] != labels[j]])
    chosen, _ = choose_threshold(pairs, ThresholdSettings(fmr=0.05))
    assert chosen.wanted_fmr == 0.05
    assert chosen.fmr == (different >= np.float32(chosen.similarity)).mean() <= 0.05
    smaller = max(similarities[i, j] for i, j in listed if similarities[i, j] < np.float32(chosen.similarity))
    assert (different >= smaller).mean() > 0.05
    equal, _ = choose_threshold(pairs, ThresholdSettings(fmr=None))
    assert equal.wanted_fmr is None
    assert equal.fmr == pytest.approx(equal.fnmr, abs=0.01)


def test_a_rate_that_too_few_pairs_can_show_is_raised() -> None:
    pairs = LabelledPairs(*make_rows(1))
    negatives = int(pairs.counts.negatives[0])
    chosen, _ = choose_threshold(pairs, ThresholdSettings(fmr=1e-4))
    assert chosen.wanted_fmr == 30 / negatives
    assert round(chosen.fmr * negatives) == 30
    few, _ = choose_threshold(LabelledPairs(*make_rows(1, 6, 2)), ThresholdSettings())
    assert few.wanted_fmr == 0.5


def test_errors_are_those_of_a_loop_over_pairs_and_classes() -> None:
    rows, labels = make_rows(2)
    similarities = (rows @ rows.T).numpy()
    metrics = compute_threshold_errors(LabelledPairs(rows, labels), 0.4)
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
def test_unknown_queries_are_those_of_the_classes_that_the_gallery_lacks(with_gallery: bool) -> None:
    rows, labels = make_rows(3)
    pairs, items, item_labels = LabelledPairs(rows, labels), rows, labels
    excluded = np.arange(80)[:, None]
    if with_gallery:
        items, item_labels = make_rows(4, 50)
        excluded = np.where(np.arange(80) < 50, np.arange(80), -1)[:, None]
        pairs = LabelledPairs(rows, labels, items, item_labels, excluded)
    classes = sorted({*labels.tolist(), *item_labels.tolist()})
    known = np.random.default_rng(5).permutation(classes)[: len(classes) // 2]
    scores, is_known, is_right = [], [], []
    for query in range(80):
        searched = [i for i in range(len(items)) if item_labels[i] in known and i not in excluded[query]]
        if labels[query] in known and labels[query] not in item_labels[searched]:
            continue
        best = max(searched, key=lambda i: float(rows[query] @ items[i]))
        scores.append(float(rows[query] @ items[best]))
        is_known.append(labels[query] in known)
        is_right.append(item_labels[best] == labels[query])
    score, known_ones, right = np.array(scores), np.array(is_known), np.array(is_right)
    metrics = reject_unknown(find_nearest_known(pairs, seed=5), 0.7)
    assert metrics == pytest.approx(
        {
            "unknown_auroc": roc_auc_score(known_ones, score),
            "known_accepted": (score >= 0.7)[known_ones].mean(),
            "known_identified": ((score >= 0.7) & right)[known_ones].mean(),
            "unknown_accepted": (score >= 0.7)[~known_ones].mean(),
        }
    )
    assert 0.5 < metrics["unknown_auroc"] < 1


def test_a_query_that_excludes_the_gallery_has_no_neighbour() -> None:
    rows, _ = make_rows(3)
    pairs = LabelledPairs(rows[:2], np.array([0, 1]), rows[2:3], np.array([0]), np.array([[-1], [0]]))
    for seed in range(4):  # the gallery's class is known, or none is
        nearest = find_nearest_known(pairs, seed)
        assert np.isfinite(nearest.scores).all()
        assert reject_unknown(nearest, 0.5) == {}


def test_what_a_test_reports_depends_on_the_splits_that_it_has() -> None:
    tested, validated = LabelledPairs(*make_rows(6)), LabelledPairs(*make_rows(7))
    metrics, curves = evaluate_threshold("test", tested, validated, ThresholdSettings())
    assert [*curves] == ["test", "val", "reliability", "reliability_balanced"]
    alone, curve = evaluate_threshold("test", tested, None, ThresholdSettings())
    assert alone == {name: metrics[name] for name in alone}
    assert {name.removeprefix("threshold/") for name in alone} >= {"eer", "fnmr@1e-3", "opis", "unknown_auroc"}
    assert not {"threshold/similarity", "threshold/calibration_slope", "threshold/ece"} & {*alone}
    np.testing.assert_array_equal(curve["test"], curves["test"])
    on_val, _ = evaluate_threshold("val", validated, validated, ThresholdSettings())
    assert on_val["threshold/similarity"] == metrics["threshold/similarity"]
    assert "threshold/fmr" not in on_val
    assert on_val["threshold/calibration_slope"] == metrics["threshold/calibration_slope"]
    assert "threshold/ece" not in on_val
    one_class = LabelledPairs(tested.embeddings, np.zeros(80))
    assert evaluate_threshold("test", one_class, validated, ThresholdSettings()) == ({}, {})
    fmr, fnmr = curves["test"]
    assert (fmr[0], fnmr[0]) == (1, 0)
    assert (np.diff(fmr) < 0).all()
    assert (np.diff(fnmr) >= 0).all()


def test_probabilities_are_fitted_on_one_split_and_judged_on_the_other() -> None:
    tested, validated = LabelledPairs(*make_rows(6)), LabelledPairs(*make_rows(7))
    metrics, curves = evaluate_threshold("test", tested, validated, ThresholdSettings())
    metrics = {name.removeprefix("threshold/"): value for name, value in metrics.items()}
    calibration = fit_calibration(validated.counts)
    assert find_calibration(metrics) == calibration
    for suffix, prior in (("", None), ("_balanced", 0.5)):
        errors = compute_calibration_errors(tested.counts, calibration, prior)
        names = [f"{name}{suffix}" for name in ("ece", "brier", "log_loss")]
        assert [metrics[name] for name in names] == [errors.ece, errors.brier, errors.log_loss]
        np.testing.assert_array_equal(curves[f"reliability{suffix}"], errors.curve)
    assert find_calibration(metrics | {"calibration_prior": 1.0}) is None
    assert find_calibration(dict.fromkeys(("similarity", "fmr", "calibration_slope"), 1.0)) is None


def test_only_cosines_of_one_list_have_pairs() -> None:
    rows, labels = make_rows(8, 20)
    columns = {"paths": np.arange(20).astype(str), "labels": labels[:, None], "split": np.full(20, "test")}
    table = ImageTable(**columns, levels=("class",))
    pairs = make_pairs(UnitEmbeddings.normalize(rows), table)
    assert pairs is not None
    np.testing.assert_array_equal(pairs.labels, labels)
    assert make_pairs(UnitEmbeddings.normalize(rows / 2, curvature=0.1), table) is None


def test_the_metrics_of_pairs_are_computed_on_request() -> None:
    rows, labels = make_rows(9)
    metrics = evaluate(rows, labels, metrics=["recall", "eer", "fnmr@1e-2", "opis"])
    verification = PairVerification(LabelledPairs(rows, labels))
    assert metrics["level0/eer"] == equal_error_rate(verification.rates)
    assert metrics["level0/opis"] == opis(verification.pairs, verification.rates)
    assert "level0/eer" not in evaluate(rows, labels)
    other = evaluate(rows[:40], labels[:40], rows[40:], labels[40:], metrics=["eer"])
    across = PairVerification(LabelledPairs(rows[:40], labels[:40], rows[40:], labels[40:]))
    assert other["level0/eer"] == equal_error_rate(across.rates)
    with pytest.raises(InputError, match="metrics: eer is of cosine similarities"):
        evaluate(rows / 2, labels, metrics=["eer"], curvature=0.1)


@pytest.mark.parametrize("fmr", [0, 1, -0.1, float("nan")])
def test_a_rate_that_is_no_rate_is_refused(fmr: float) -> None:
    with pytest.raises(InputError, match=r"^evaluation\.threshold\.fmr=.*: must be above 0 and below 1"):
        ThresholdSettings(fmr)


def test_the_report_draws_the_curves_and_the_threshold(make_run: MakeRun) -> None:
    run: Path = make_run("run")
    assert "Same or not" not in run_report(read_run(run))
    folder = RunFolder(run)
    tested, validated = LabelledPairs(*make_rows(6)), LabelledPairs(*make_rows(7))
    metrics, curves = evaluate_threshold("test", tested, validated, ThresholdSettings(fmr=0.03))
    folder.write_threshold_curves({name: curve.tolist() for name, curve in curves.items()})
    folder.write_metrics({**folder.metrics(), **metrics})
    page = run_report(read_run(run))
    assert f"<strong>{metrics['threshold/similarity']:.4f}</strong>" in page
    assert "for a false match rate of 3 %" in page
    section = page[page.index('id="threshold"') : page.index('id="retrieval"')]
    assert section.count('class="line"') == section.count('class="chosen"') == 2
    assert section.count('class="reliability line"') == 2
    assert f"if {100 * metrics['threshold/calibration_prior']:.2g} % of all pairs are" in section
    assert f"<dt>ECE, balanced</dt><dd>{100 * metrics['threshold/ece_balanced']:.1f} %</dd>" in section
    assert re.findall(r'<th scope="row">(.*?)</th>', section) == [
        "validation",
        "test",
        "test, median class",
        "test, worst class",
    ]
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", "".join(re.findall(r' d="(M[^"]*)"', section)))]
    assert min(numbers) >= 0
    assert max(numbers) <= 100
    assert f"{100 * metrics['threshold/eer']:.1f} %" in section
    old = {name: curve.tolist() for name, curve in curves.items() if name in ("test", "val")}
    folder.write_threshold_curves(old)  # a run of a version that fitted no probabilities
    folder.write_metrics({name: value for name, value in folder.metrics().items() if "calibration" not in name})
    page = run_report(read_run(run))
    assert 'class="chosen"' in page
    assert "reliability" not in page
    folder.write_threshold_curves({})
    assert folder.threshold_curves() == {}
