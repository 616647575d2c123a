from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import row_blocks
from dml.ops.pairs import finest, unit_distances
from dml.ops.precision import full_precision
from dml.runtime.errors import check_number


class FacilityLocationLoss(Loss):
    r"""Structured clustering by facility location (Song et al., 2017), Eq. 4-8 and Algorithms 1-2.

    A set S of medoids is as many of the batch's embeddings as the batch has classes. Each embedding belongs to the
    cluster of the medoid nearest to it::

        F(S) = -sum_i min_{j in S} d_ij                          d: Euclidean distances
        D(S) = 1 - NMI(clusters of S, classes)                   NMI = I / sqrt(H H)
        L = max(0, max_S (F(S) + gamma D(S)) - sum_classes max_{j in class} F_class({j}))

    The S that maximizes F + gamma D is approximated in two steps: medoids are added greedily, one by one; then each
    medoid in turn moves to the member of its cluster that makes F + gamma D largest (PAM). This takes at least
    (classes x B)^2 steps, so use small batches. The embeddings are L2-normalized here. The loss is a sum over the
    batch, as published.

    Departures: among equally good medoids the embeddings decide, not their order in the batch. A medoid always
    belongs to its own cluster, even if another medoid has the same embedding.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> round(FacilityLocationLoss()(embeddings, torch.tensor([0, 0, 1])).item(), 3)
    0.464

    Args:
        gamma: weight of D, in units of distance. The default of 1 is this project's choice, not the paper's value.
        refinements: largest number of rounds of Algorithm 2; 0 keeps the greedy choice.
    """

    needs_classes = True
    needs_positives: ClassVar[bool] = True

    def __init__(self, gamma: float = 1.0, refinements: int = 5) -> None:
        super().__init__()
        check_number("loss.gamma", gamma, least=0)
        self.gamma = gamma
        self.refinements = refinements

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        unit = F.normalize(embeddings, dim=1)
        classes = _number_rows(finest(labels))
        order = _order_by_content(unit.detach(), classes)
        unit, classes = unit[order], classes[order]
        distances = unit_distances(unit, unit)
        search = _MedoidSearch(distances.detach(), classes, self.gamma)
        medoids = search.choose_greedily()
        medoids = search.refine(medoids, self.refinements)
        clusters, margin = search.assign_clusters(medoids[None])[0], search.margins(medoids[None])[0]
        score = -distances[torch.arange(len(unit), device=unit.device), medoids[clusters]].sum()
        return F.relu(score + self.gamma * margin - _score_true_classes(distances, classes))


def _order_by_content(rows: Tensor, classes: Tensor) -> Tensor:
    """Return an order (B,) of the rows (B, D) that depends on embeddings and classes, not on the order given."""
    by_class = classes.argsort(stable=True)
    return by_class[_number_rows(rows)[by_class].argsort(stable=True)]


def _number_rows(rows: Tensor) -> Tensor:
    """Number the distinct rows from 0 in ascending order and return the number of each row (B,)."""
    inverse: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return inverse


def _score_true_classes(distances: Tensor, classes: Tensor) -> Tensor:
    """Compute F of the true classes, with the best member of each class as its medoid."""
    costs = (distances * (classes[:, None] == classes)).sum(dim=1)
    members = classes == torch.arange(int(classes.max()) + 1, device=classes.device)[:, None]
    return -torch.where(members, costs, torch.inf).amin(dim=1).sum()


class _MedoidSearch:
    """Searches for the medoids that maximize F + gamma D (loss-augmented inference).

    Medoids (S,) are row indices of the batch; each row of trials (T, S) is a set of medoids to compare.

    Args:
        distances: (B, B) distances of the embeddings.
        classes: (B,) class numbers from 0 without gaps.
        gamma: weight of D.
    """

    def __init__(self, distances: Tensor, classes: Tensor, gamma: float) -> None:
        self.distances, self.classes, self.gamma = distances, classes, gamma
        self.num_classes = int(classes.max()) + 1

    def choose_greedily(self) -> Tensor:
        """Run Algorithm 1: add the medoid that makes F + gamma D largest until there are as many as classes."""
        row_indices = torch.arange(len(self.classes), device=self.classes.device)
        medoids = row_indices[:0]
        for _ in range(self.num_classes):
            candidates = row_indices[~torch.isin(row_indices, medoids)]
            trials = torch.cat([medoids.expand(len(candidates), -1), candidates[:, None]], dim=1)
            medoids = self._select_best(trials)
        return medoids

    def refine(self, medoids: Tensor, rounds: int) -> Tensor:
        """Run Algorithm 2: move each medoid within its cluster until none moves."""
        for _ in range(rounds):
            before = medoids
            for cluster in range(len(medoids)):
                members = (self.assign_clusters(medoids[None])[0] == cluster).nonzero()[:, 0]
                trials = medoids.repeat(len(members), 1)
                trials[:, cluster] = members
                medoids = self._select_best(trials)
            if torch.equal(medoids, before):
                break
        return medoids

    def scores(self, trials: Tensor) -> Tensor:
        """Compute F + gamma D of each set of medoids, some sets at a time. (T, S) -> (T,)"""
        width = trials.shape[1] * max(len(self.classes), self.num_classes)  # of distances, and of counts
        # blocks are four times as long as others, as there are many of them for each medoid
        blocks = row_blocks(range(len(trials)), width // 4, trials.device)
        return torch.cat([self._score(trials[block]) for block in blocks])

    def _score(self, trials: Tensor) -> Tensor:
        return self.gamma * self.margins(trials) - self.distances[:, trials].amin(dim=2).sum(dim=0)

    def _select_best(self, trials: Tensor) -> Tensor:
        """Return the first of the sets whose scores are largest, up to rounding. (T, S) -> (S,)"""
        scores = self.scores(trials)
        return trials[(scores >= scores.max() - 1024 * torch.finfo(scores.dtype).eps).nonzero()[0, 0]]

    def assign_clusters(self, trials: Tensor) -> Tensor:
        """Return the cluster of each embedding, numbered from 0 to S - 1 like the medoids. (T, S) -> (T, B)"""
        nearest = self.distances[trials].argmin(dim=1)
        clusters = torch.arange(trials.shape[1], device=trials.device)
        return nearest.scatter(1, trials, clusters.expand_as(trials))

    def margins(self, trials: Tensor) -> Tensor:
        """Compute D = 1 - NMI of the medoids' clusters and the classes. (T, S) -> (T,)"""
        cells = self.assign_clusters(trials) * self.num_classes + self.classes
        table = self.distances.new_zeros(len(trials), trials.shape[1] * self.num_classes)
        table = table.scatter_add(1, cells, torch.ones_like(cells, dtype=table.dtype))
        table = table.view(len(trials), -1, self.num_classes)
        return 1.0 - _normalized_mutual_information(table)


def _normalized_mutual_information(table: Tensor) -> Tensor:
    """Compute I / sqrt(H H) of contingency tables of counts (T, S, C) -> (T,); 1 if the partitions are the same."""
    rows, columns, cells = table.sum(dim=2), table.sum(dim=1), table.flatten(1)
    row_entropy, column_entropy = _entropy(rows), _entropy(columns)
    information = row_entropy + column_entropy - _entropy(cells)
    used = (cells > 0).sum(dim=1)
    # The numbers of used cells tell exactly whether the partitions are the same; the entropies are rounded.
    same = (used == (rows > 0).sum(dim=1)) & (used == (columns > 0).sum(dim=1))
    product = row_entropy * column_entropy
    ratio = information / torch.where(product > 0, product, 1.0).sqrt()
    return torch.where(same, 1.0, torch.where(product > 0, ratio, 0.0))


def _entropy(counts: Tensor) -> Tensor:
    """Compute the entropy of counts (T, K) -> (T,)."""
    shares = counts / counts.sum(dim=1, keepdim=True)
    return -torch.xlogy(shares, shares).sum(dim=1)
