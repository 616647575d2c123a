"""Class splits of growing distance: classes are swapped between training and test, so that the two sides drift apart.

Source: Milbich et al., Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning, NeurIPS
2021 (ooDML). `swap_classes` names what is simpler here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from dml.runtime.errors import InputError

CLASSES_PER_COMPONENT = 2
"""The fewest classes on a side for each principal component, so that the covariance of a side has full rank."""
MARGIN = 1e-9
"""The gain of a swap, as a share of the distance of the means, below which it may be a rounding error."""


@dataclass(frozen=True)
class ShiftLevel:
    """A class split at a distance.

    Args:
        is_test: (C,) bool, whether a class is for the test.
        distance: squared Frechet distance of the two sides (`measure_distance`), in squared units of the features.
        swaps: number of pairs of classes that were swapped since the beginning.
    """

    is_test: NDArray[np.bool_]
    distance: float
    swaps: int

    def count_moved(self, beginning: "ShiftLevel") -> int:
        """Count the classes that are on the other side than at the beginning; a class may be swapped back."""
        return int((self.is_test != beginning.is_test).sum())


def average_classes(features: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average the features (N, F) of each class -> (C, F), in the order of the sorted labels (N,)."""
    _, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), features.shape[1]))
    np.add.at(sums, members, features)
    means: NDArray[np.float64] = sums / sizes[:, None]
    return means


def draw_half(classes: int, seed: int) -> NDArray[np.bool_]:
    """Draw half of the classes for the test -> (C,) bool; of an odd number, training gets one more."""
    is_test = np.zeros(classes, dtype=np.bool_)
    is_test[np.random.default_rng([seed, 0x5417F]).permutation(classes)[: classes // 2]] = True
    return is_test


def reduce_features(means: NDArray[np.float64], is_test: NDArray[np.bool_], components: int) -> NDArray[np.float64]:
    """Project the features (C, F) of the classes onto their first principal components -> (C, components or fewer).

    There are at least `CLASSES_PER_COMPONENT` classes on each side for each component.

    Raises:
        InputError: if a side has fewer classes than one component needs.
    """
    smaller = int(min(is_test.sum(), (~is_test).sum()))
    if smaller < CLASSES_PER_COMPONENT:
        raise InputError(f"{smaller} classes on one side of the split: at least {CLASSES_PER_COMPONENT} can be swapped")
    number = min(components, smaller // CLASSES_PER_COMPONENT, *means.shape)
    reduced: NDArray[np.float64] = PCA(number, svd_solver="full").fit_transform(means)
    return reduced


def measure_distance(features: NDArray[np.float64], is_test: NDArray[np.bool_]) -> float:
    """Return the squared Frechet distance of the Gaussians with the means and covariances of both sides.

    |m1 - m2|^2 + tr(S1) + tr(S2) - 2 tr((S1 S2)^(1/2)) of features (C, D), where each class counts once.
    """
    sides = features[~is_test], features[is_test]
    difference = sides[0].mean(axis=0) - sides[1].mean(axis=0)
    covariances = [np.cov(side, rowvar=False).reshape(features.shape[1], -1) for side in sides]
    values, directions = np.linalg.eigh(covariances[0])
    root = directions * np.sqrt(values.clip(0)) @ directions.T
    # the eigenvalues of S1 S2 are those of the symmetric S1^(1/2) S2 S1^(1/2)
    product_values = np.linalg.eigvalsh(root @ covariances[1] @ root).clip(0)
    traces = np.trace(covariances[0]) + np.trace(covariances[1])
    return float(difference @ difference + traces - 2 * np.sqrt(product_values).sum())


def swap_classes(features: NDArray[np.float64], is_test: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Yield the split (C,) bool after each swap of a training class and a test class, until no swap helps.

    A swap takes the training class and the test class that move the means m of the two sides farthest apart along their
    difference d = m_train - m_test: argmin of d · x over the training classes, and argmax over the test classes. Each
    swap increases the distance of the means, so the loop ends.

    This is the swapping step of ooDML, simplified: a class counts by its mean alone, and its distances to m_train and
    m_test are squared, whose difference is linear in d · x. ooDML then removes classes that are near the other side;
    here all classes stay, so that the sizes of both sides are the same at every level.
    """
    current = is_test.copy()
    while True:
        difference = features[~current].mean(axis=0) - features[current].mean(axis=0)
        places = features @ difference
        training, test = np.flatnonzero(~current), np.flatnonzero(current)
        first, second = training[places[training].argmin()], test[places[test].argmax()]
        if places[second] - places[first] <= MARGIN * (difference @ difference):
            return
        current[[first, second]] = current[[second, first]]
        yield current.copy()


def choose_levels(features: NDArray[np.float64], is_test: NDArray[np.bool_], levels: int) -> list[ShiftLevel]:
    """Swap classes, and choose splits at evenly spaced distances -> K + 1 levels, from the beginning to the largest.

    Level k of K is the first split whose distance is at least that of the beginning plus k / K of the increase.

    Raises:
        InputError: if too few swaps increase the distance for so many levels.
    """
    splits = [is_test, *swap_classes(features, is_test)]
    distances = np.array([measure_distance(features, split) for split in splits])
    goals = np.linspace(distances[0], distances.max(), levels + 1)
    # the largest distance itself, where rounding could put the last goal above it
    swaps = [int(np.argmax(distances >= goal)) for goal in goals[:-1]] + [int(distances.argmax())]
    if len({*swaps}) <= levels:
        raise InputError(f"levels={levels}: only {len({*swaps}) - 1} can be told apart, with {swaps[-1]} swaps in all")
    return [ShiftLevel(splits[number], float(distances[number]), number) for number in swaps]
