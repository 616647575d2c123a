"""Verification metrics, against scikit-learn and slow loops over all pairs."""

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.interpolate import interp1d
from scipy.optimize import brentq
from sklearn.metrics import roc_curve

import dml.metrics.pairs
from dml.metrics.pairs import EDGES, HALF, LabeledPairs
from dml.metrics.verification import class_rates, equal_error_rate, error_rates, find_threshold, fnmr_at_fmr, opis

FMRS = (1e-1, 1e-2, 1e-3, 1e-4)
Pair = tuple[float, Any, Any]


def make_items(seed: int, size: int = 90, classes: int = 8, *, noise: float = 0.8) -> tuple[torch.Tensor, Any]:
    """Unit embeddings around the middles of classes, some of them equal, one of them zero; one class has one image."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=size) * 3
    labels[5] = 1_000
    rows = rng.normal(size=(3 * classes, 6))[labels % (3 * classes)] + noise * rng.normal(size=(size, 6))
    rows[7] = rows[8] = rows[60]
    unit = torch.nn.functional.normalize(torch.from_numpy(rows), dim=1).float()
    unit[9] = 0
    return unit, labels


def list_pairs(pairs: LabeledPairs) -> list[Pair]:
    """Every pair that counts: its similarity, in float32 as the blocks compute it, and the two classes."""
    items = pairs.embeddings if pairs.gallery is None else pairs.gallery
    item_labels = pairs.labels if pairs.gallery_labels is None else pairs.gallery_labels
    similarities = (pairs.embeddings @ items.T).clamp(-1, 1).double().numpy()
    if pairs.gallery is None:
        places = list(combinations(range(len(items)), 2))
    else:
        places = [(i, j) for i in range(len(pairs.embeddings)) for j in range(len(items))]
        if pairs.excluded is not None:
            places = [(i, j) for i, j in places if j not in pairs.excluded[i]]
    return [(similarities[i, j], pairs.labels[i], item_labels[j]) for i, j in places]


def with_gallery(seed: int) -> LabeledPairs:
    rows, labels = make_items(seed)
    gallery, gallery_labels = make_items(seed + 1, 70)
    excluded = np.full((90, 2), -1)
    excluded[::3, 0], excluded[::6, 1] = np.arange(30), np.arange(15) + 40
    return LabeledPairs(rows, labels, gallery, gallery_labels, excluded)


def rate(of: npt.NDArray[np.float64], threshold: float) -> float:
    return sum(value >= threshold for value in of) / len(of)


@pytest.fixture(params=["alone", "gallery", "small blocks", "gallery in small blocks"])
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LabeledPairs:
    # all of it in one block gives the same products as the loop; single rows may differ in their last bit
    if "small" in request.param:
        monkeypatch.setattr("dml.metrics.pairs.BLOCK", 1_000)
    return with_gallery(2) if "gallery" in request.param else LabeledPairs(*make_items(1))


@pytest.fixture
def one_block(pairs: LabeledPairs) -> bool:
    return dml.metrics.pairs.BLOCK > 1_000


def test_pairs_are_counted_at_the_edges(pairs: LabeledPairs) -> None:
    listed = list_pairs(pairs)
    for edge in (0, 1, HALF // 2, HALF, HALF + 999, len(EDGES) - 3, len(EDGES) - 1):
        above = [first == second for similarity, first, second in listed if similarity >= EDGES[edge]]
        assert (pairs.counts.positives[edge], pairs.counts.negatives[edge]) == (sum(above), len(above) - sum(above))


def test_rates_are_those_of_scikit_learn(pairs: LabeledPairs, one_block: bool) -> None:
    listed = list_pairs(pairs)
    is_same = [first == second for _, first, second in listed]
    rates = error_rates(pairs, FMRS)
    fpr, tpr, _ = roc_curve(is_same, [similarity for similarity, _, _ in listed], drop_intermediate=False)
    for fmr in FMRS:
        expected = min(1 - b for a, b in zip(fpr, tpr, strict=True) if a <= fmr)
        assert fnmr_at_fmr(rates, fmr) == pytest.approx(expected, abs=1e-12)
    crossing = brentq(lambda x: 1 - x - interp1d(fpr, tpr)(x), 0, 1, xtol=1e-14)
    assert equal_error_rate(rates) == pytest.approx(crossing, abs=1e-9)
    # each point of the curve is one of scikit-learn's
    points = {(round(a, 12), round(1 - b, 12)) for a, b in zip(fpr, tpr, strict=True)}
    chosen = [find_threshold(rates, fmr) for fmr in FMRS]
    assert {(round(float(rates.fmr[i]), 12), round(float(rates.fnmr[i]), 12)) for i in chosen} <= points
    assert (np.diff(rates.thresholds) > 0).all()


def test_a_threshold_obtains_its_rates(pairs: LabeledPairs) -> None:
    """Counting again with the threshold gives the rates that the curve has there."""
    rates = error_rates(pairs, FMRS)
    for fmr in FMRS[:2]:
        place = find_threshold(rates, fmr)
        counted = pairs.count_by_class(rates.thresholds[[place]])
        assert counted.negatives.sum() / counted.all_negatives.sum() == rates.fmr[place] <= fmr
        assert 1 - counted.positives.sum() / counted.all_positives.sum() == rates.fnmr[place]


def test_classes_are_counted(pairs: LabeledPairs) -> None:
    thresholds, listed = np.array([-0.3, 0.2, 0.6], dtype=np.float32), list_pairs(pairs)
    names = sorted({label for _, first, second in listed for label in (first, second)})
    counts = pairs.count_by_class(thresholds)
    for i, name in enumerate(names):
        inside = [similarity for similarity, first, second in listed if first == second == name]
        across = [similarity for similarity, first, second in listed if (first == name) != (second == name)]
        assert (counts.all_positives[i], counts.all_negatives[i]) == (len(inside), len(across))
        for j, threshold in enumerate(thresholds):
            assert counts.positives[i, j] == sum(value >= threshold for value in inside)
            assert counts.negatives[i, j] == sum(value >= threshold for value in across)
    fmr, fnmr = class_rates(counts)
    assert np.isnan(fnmr[counts.all_positives == 0]).all()
    assert np.isfinite(fmr).all()


def test_opis_is_the_loop_over_classes_and_distances(pairs: LabeledPairs) -> None:
    rates, listed = error_rates(pairs, FMRS), list_pairs(pairs)
    different = sorted((similarity for similarity, first, second in listed if first != second), reverse=True)
    ends = []
    for fmr in (1e-2, 1e-1):  # the first similarity that lets no more pairs pass
        limit = different[int(fmr * len(different) + 1e-9)]
        ends.append(min(s for s in [*(pair[0] for pair in listed), *EDGES] if s > limit))
    distances = np.linspace(*(np.sqrt(2 - 2 * end) for end in ends), 101)
    names = sorted({first for _, first, second in listed if first == second})
    utilities = np.zeros((len(names), 101))
    for i, name in enumerate(names):
        inside = np.array([pair[0] for pair in listed if pair[1] == pair[2] == name])
        across = np.array([pair[0] for pair in listed if (pair[1] == name) != (pair[2] == name)])
        for j, distance in enumerate(distances):
            threshold = np.float32(1 - distance**2 / 2)
            a, b = rate(inside, threshold), 1 - rate(across, threshold)
            utilities[i, j] = 2 * a * b / (a + b)
    deviations = ((utilities - utilities.mean(axis=0)) ** 2).mean(axis=0)
    expected = np.trapezoid(deviations, distances) / (distances[-1] - distances[0])
    assert opis(pairs, rates) == pytest.approx(expected, abs=1e-12)
    assert expected > 1e-4


def test_a_class_without_a_right_decision_has_a_utility_of_0_in_opis() -> None:
    """Each of the two images of class 0 is nearer to all images of the other 20 classes than to the other one."""
    center, side, *axes = np.eye(22)
    rows = [0.6 * center + 0.8 * side, 0.6 * center - 0.8 * side, *(0.4 * center + 0.84**0.5 * np.repeat(axes, 2, 0))]
    pairs = LabeledPairs(torch.tensor(np.array(rows)).float(), np.repeat(np.arange(21), 2))
    share = 1 / 21  # of the classes; pairs of class 0 and another are 10 % of those of two classes, so they pass
    assert opis(pairs, error_rates(pairs, FMRS)) == pytest.approx(share * (1 - share), rel=0.1)


def test_one_class_or_no_pair_of_one_class_has_no_rates() -> None:
    rows, _ = make_items(3, 70)
    for labels in (np.zeros(70, dtype=int), np.arange(70)):
        pairs = LabeledPairs(rows, labels)
        rates = error_rates(pairs, FMRS)
        assert np.isnan([equal_error_rate(rates), opis(pairs, rates)]).all()


def test_classes_far_apart_have_no_errors() -> None:
    pairs = LabeledPairs(torch.eye(4)[[0, 0, 1, 1, 2, 2, 3, 3]], np.arange(8) // 2)
    rates = error_rates(pairs, FMRS)
    assert [fnmr_at_fmr(rates, 1e-4), equal_error_rate(rates), opis(pairs, rates)] == [0, 0, 0]
    assert 0 < rates.thresholds[find_threshold(rates, 1e-4)] <= 1


def test_many_equal_similarities_are_one_threshold() -> None:
    """A network that maps all images to one point: every threshold lets all pairs pass, or none."""
    pairs = LabeledPairs(torch.nn.functional.normalize(torch.ones(300, 7), dim=1), np.arange(300) // 10)
    rates = error_rates(pairs, FMRS)
    assert fnmr_at_fmr(rates, 1e-3) == 1
    assert equal_error_rate(rates) == pytest.approx(0.5)
    assert len(rates.thresholds) < len(EDGES) + 10
