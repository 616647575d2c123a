import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from dml.losses.facility_location import FacilityLocationLoss


class Oracle:
    """Eq. 4-8 with plain loops."""

    def __init__(self, embeddings: Tensor, labels: list[int], gamma: float) -> None:
        pairs = sorted(zip(F.normalize(embeddings, dim=1).tolist(), labels, strict=True))
        self.distances = [[math.dist(first, second) for second, _ in pairs] for first, _ in pairs]
        self.labels, self.gamma = [label for _, label in pairs], gamma
        self.everyone = range(len(labels))

    def nearest(self, medoids: tuple[int, ...]) -> list[int]:
        return [i if i in medoids else min(medoids, key=self.distances[i].__getitem__) for i in self.everyone]

    def augmented(self, medoids: tuple[int, ...]) -> float:
        nearest = self.nearest(medoids)
        score = -sum(self.distances[i][j] for i, j in enumerate(nearest))
        margin = 1 - normalized_mutual_info_score(self.labels, nearest, average_method="geometric")
        return score + self.gamma * margin

    def true_classes(self) -> float:
        total = 0.0
        for label in set(self.labels):
            members = [i for i in self.everyone if self.labels[i] == label]
            total += max(-sum(self.distances[i][j] for i in members) for j in members)
        return total

    def best(self, trials: list[tuple[int, ...]]) -> tuple[int, ...]:
        """The first of those that tie, in the order of the embeddings."""
        scores = [self.augmented(medoids) for medoids in trials]
        return next(medoids for medoids, score in zip(trials, scores, strict=True) if score > max(scores) - 1e-10)

    def greedy(self) -> tuple[int, ...]:
        medoids: tuple[int, ...] = ()
        for _ in set(self.labels):
            trials = [(*medoids, i) for i in self.everyone if i not in medoids]
            medoids = self.best(trials)
        return medoids

    def refined(self, medoids: tuple[int, ...]) -> tuple[int, ...]:
        for _ in range(5):
            for place, medoid in enumerate(medoids):
                members = [i for i, nearest in enumerate(self.nearest(medoids)) if nearest == medoid]
                trials = [(*medoids[:place], i, *medoids[place + 1 :]) for i in members]
                medoids = self.best(trials)
        return medoids

    def loss(self, medoids: tuple[int, ...]) -> float:
        return max(0.0, self.augmented(medoids) - self.true_classes())

    def exact(self) -> tuple[int, ...]:
        return max(combinations(self.everyone, len(set(self.labels))), key=self.augmented)


BATCHES = {
    "labels": st.lists(st.integers(0, 3), min_size=2, max_size=9),
    "seed": st.integers(0, 10_000),
    "gamma": st.sampled_from([0.0, 1.0, 5.0]),
}


@given(**BATCHES)
@examples(40)
def test_equals_the_loops(labels: list[int], seed: int, gamma: float) -> None:
    embeddings = draw_embeddings(len(labels), 3, seed)
    oracle = Oracle(embeddings, labels, gamma)
    greedy = FacilityLocationLoss(gamma, refinements=0)(embeddings, torch.tensor(labels)).item()
    refined = FacilityLocationLoss(gamma)(embeddings, torch.tensor(labels)).item()
    assert greedy == pytest.approx(oracle.loss(oracle.greedy()), abs=1e-6)
    assert refined == pytest.approx(oracle.loss(oracle.refined(oracle.greedy())), abs=1e-6)
    assert greedy <= refined + 1e-6
    assert refined <= oracle.loss(oracle.exact()) + 1e-6


def test_clusters_that_are_the_classes_cost_nothing() -> None:
    labels = torch.arange(12) // 4
    embeddings = 10 * torch.eye(3, dtype=torch.float64)[labels] + 0.01 * draw_embeddings(12, 3)
    leaf = embeddings.requires_grad_()
    value = FacilityLocationLoss()(leaf, labels)
    value.backward()
    assert value == 0
    assert (leaf.grad == 0).all()


def test_gradcheck() -> None:
    labels = torch.tensor([0, 1, 0, 1, 2, 2, 0])
    embeddings = draw_embeddings(7, 3, seed=3).requires_grad_()
    loss = FacilityLocationLoss()
    assert loss(embeddings, labels) > 0
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), embeddings)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_pairs_is_irrelevant(seed: int) -> None:
    # with two images a class either is as good a medoid: ties all over
    labels = torch.arange(24) // 2
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    straight = draw_embeddings(24, 8, seed).float().requires_grad_()
    shuffled = straight.detach()[order].requires_grad_()
    value, other = FacilityLocationLoss()(straight, labels), FacilityLocationLoss()(shuffled, labels[order])
    value.backward()
    other.backward()
    torch.testing.assert_close(value, other)
    assert straight.grad is not None
    torch.testing.assert_close(straight.grad[order], shuffled.grad)
