from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.ops.distances import unit_distances
from dml.ops.pairs import finest
from dml.ops.precision import full_precision


class FacilityLocationLoss(nn.Module):
    r"""Structured clustering by facility location (Song et al., 2017), Eq. 4-8 and Algorithms 1-2.

    Medoids S, as many of the batch's embeddings as it has classes, each serve the embeddings nearest to them::

        F(S) = -sum_i min_{j in S} d_ij                          d: Euclidean distances
        D(S) = 1 - NMI(clusters of S, classes)                   NMI = I / sqrt(H H)
        L = max(0, max_S (F(S) + gamma D(S)) - sum_classes max_{j in class} F_class({j}))

    The worst S is found greedily, a medoid after the other, and then refined: each medoid in turn moves to the
    member of its cluster that makes F + gamma D largest (PAM). That takes (classes x B)^2 steps and more, so
    batches are small. The embeddings are L2-normalised here. The loss is a sum over the batch, as published.

    Departures: equally bad medoids are chosen by their embeddings, not by their place in the batch. A medoid serves
    itself, also if another one coincides with it.

    Args:
        gamma: weight of D, in units of distance. 1 is a choice here, not the paper's value.
        refinements: rounds of Algorithm 2 at most; 0 is the greedy choice alone.
    """

    needs_positives: ClassVar[bool] = True

    def __init__(self, gamma: float = 1.0, refinements: int = 5) -> None:
        super().__init__()
        self.gamma = gamma
        self.refinements = refinements

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        unit = F.normalize(embeddings, dim=1)
        classes = _ranked(finest(labels))
        order = _order_by_content(unit.detach(), classes)
        unit, classes = unit[order], classes[order]
        distances = unit_distances(unit, unit)
        search = _MedoidSearch(distances.detach(), classes, self.gamma)
        medoids = search.greedy()
        medoids = search.refined(medoids, self.refinements)
        places, margin = search.assigned(medoids[None])[0], search.margins(medoids[None])[0]
        score = -distances[torch.arange(len(unit), device=unit.device), medoids[places]].sum()
        return F.relu(score + self.gamma * margin - _oracle(distances, classes))


def _order_by_content(rows: Tensor, classes: Tensor) -> Tensor:
    """An order of the rows (B, D) that doesn't depend on theirs; ties are rows of one class that are equal."""
    by_class = classes.argsort(stable=True)
    return by_class[_ranked(rows)[by_class].argsort(stable=True)]


def _ranked(rows: Tensor) -> Tensor:
    """The place (B,) of each row among the different ones, from 0, in ascending order."""
    inverse: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return inverse


def _oracle(distances: Tensor, classes: Tensor) -> Tensor:
    """The score of the true classes, each served by its best member."""
    costs = (distances * (classes[:, None] == classes)).sum(dim=1)
    members = classes == torch.arange(int(classes.max()) + 1, device=classes.device)[:, None]
    return -torch.where(members, costs, torch.inf).amin(dim=1).sum()


class _MedoidSearch:
    """Loss-augmented inference; medoids (S,) are rows of the batch, trials (T, S) are sets of them."""

    def __init__(self, distances: Tensor, classes: Tensor, gamma: float) -> None:
        """distances (B, B), classes (B,) from 0 without gaps."""
        self.distances, self.classes, self.gamma = distances, classes, gamma
        self.count = int(classes.max()) + 1

    def greedy(self) -> Tensor:
        """Algorithm 1: adds the medoid that makes the augmented score largest until there is one a class."""
        everyone = torch.arange(len(self.classes), device=self.classes.device)
        medoids = everyone[:0]
        for _ in range(self.count):
            candidates = everyone[~torch.isin(everyone, medoids)]
            trials = torch.cat([medoids.expand(len(candidates), -1), candidates[:, None]], dim=1)
            medoids = self._best(trials)
        return medoids

    def refined(self, medoids: Tensor, rounds: int) -> Tensor:
        """Algorithm 2: moves each medoid within its cluster, until none moves."""
        for _ in range(rounds):
            before = medoids
            for place in range(len(medoids)):
                members = (self.assigned(medoids[None])[0] == place).nonzero()[:, 0]
                trials = medoids.repeat(len(members), 1)
                trials[:, place] = members
                medoids = self._best(trials)
            if torch.equal(medoids, before):
                break
        return medoids

    def scores(self, trials: Tensor) -> Tensor:
        """F + gamma D of each set of medoids. (T, S) -> (T,)"""
        return self.gamma * self.margins(trials) - self.distances[:, trials].amin(dim=2).sum(dim=0)

    def _best(self, trials: Tensor) -> Tensor:
        """The first of the best sets; equal scores differ by their rounding, and rounding has no order."""
        scores = self.scores(trials)
        return trials[(scores >= scores.max() - 1024 * torch.finfo(scores.dtype).eps).nonzero()[0, 0]]

    def assigned(self, trials: Tensor) -> Tensor:
        """Each row's nearest medoid, as its place among them. (T, S) -> (T, B)"""
        nearest = self.distances[trials].argmin(dim=1)
        places = torch.arange(trials.shape[1], device=trials.device)
        return nearest.scatter(1, trials, places.expand_as(trials))

    def margins(self, trials: Tensor) -> Tensor:
        """1 - NMI of the medoids' clusters and the classes. (T, S) -> (T,)"""
        cells = self.assigned(trials) * self.count + self.classes
        table = self.distances.new_zeros(len(trials), trials.shape[1] * self.count)
        table = table.scatter_add(1, cells, torch.ones_like(cells, dtype=table.dtype))
        table = table.view(len(trials), -1, self.count)
        return 1.0 - _normalised_mutual_information(table)


def _normalised_mutual_information(table: Tensor) -> Tensor:
    """I / sqrt(H H) of contingency tables of counts (T, S, C) -> (T,); 1 if the partitions are the same."""
    rows, columns, cells = table.sum(dim=2), table.sum(dim=1), table.flatten(1)
    row_entropy, column_entropy = _entropy(rows), _entropy(columns)
    information = row_entropy + column_entropy - _entropy(cells)
    used = (cells > 0).sum(dim=1)
    same = (used == (rows > 0).sum(dim=1)) & (used == (columns > 0).sum(dim=1))  # exactly, without rounding
    product = row_entropy * column_entropy
    ratio = information / torch.where(product > 0, product, 1.0).sqrt()
    return torch.where(same, 1.0, torch.where(product > 0, ratio, 0.0))


def _entropy(counts: Tensor) -> Tensor:
    """Entropy of counts (T, K) -> (T,)."""
    shares = counts / counts.sum(dim=1, keepdim=True)
    return -torch.xlogy(shares, shares).sum(dim=1)
