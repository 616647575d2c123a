"""Images that are copies of each other: scaled, stored again, or of the same moment."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from dml.data.table import TEST_SPLITS, TRAINING_SPLITS
from dml.evaluation.audit.findings import NEAR_DUPLICATE, AuditedImages, Finding
from dml.evaluation.audit.settings import AuditSettings
from dml.retrieval.search import nearest_neighbors


@dataclass(frozen=True)
class DuplicatePairs:
    """Pairs of images that are copies of each other.

    Args:
        first, second: (P,) rows of the two images of each pair, the lower row first.
        cosines: (P,) cosine similarities.
        bits: (P,) numbers of different bits of the perceptual hashes.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    cosines: NDArray[np.float32]
    bits: NDArray[np.int64]

    @property
    def scores(self) -> NDArray[np.float64]:
        """The means (P,) of the cosine similarity and the correlation of the hashes: 1 for equal images."""
        return (self.cosines + 1 - self.bits / 128) / 2

    def group(self, count: int) -> NDArray[np.int64]:
        """Return for each of ``count`` images the number (N,) of its group, whose images are linked by pairs."""
        links = coo_matrix((np.ones(len(self.first)), (self.first, self.second)), shape=(count, count))
        groups: NDArray[np.int64] = connected_components(links, directed=False)[1]
        return groups

    def list_copies(self, images: AuditedImages, settings: AuditSettings) -> list[list[int]]:
        """Return for each image the rows of its copies.

        Of more copies of one picture than ``settings.neighbors``, each image finds only so many. So all images of a
        larger group, as pairs link them, are compared with each other.
        """
        count = len(images.table)
        copies: list[list[int]] = [[] for _ in range(count)]
        for first, second in zip(self.first.tolist(), self.second.tolist(), strict=True):
            copies[first].append(second)
            copies[second].append(first)
        groups = self.group(count)
        for group in np.flatnonzero(np.bincount(groups) > settings.neighbors + 1).tolist():
            members = np.flatnonzero(groups == group)
            for row in members.tolist():
                others = members[members != row]
                cosines, bits = _compare(images, np.full_like(others, row), others)
                copies[row] = others[_are_copies(cosines, bits, settings)].tolist()
        return copies


def find_duplicate_pairs(images: AuditedImages, settings: AuditSettings) -> DuplicatePairs:
    """Find the pairs of copies among the nearest neighbours of each image, by embedding and by perceptual hash.

    A pair are copies if at most ``copy_bits`` of 256 bits of their hashes differ and their cosine similarity is at
    least ``copy_cosine``. The similarity alone shows no copies: in a trained network a whole class may be as near.
    """
    signs = 2 * images.hashes - 1  # the dot product of two signs is 256 - 2 different bits
    pairs = np.concatenate([_list_pairs(rows, settings.neighbors) for rows in (images.embeddings, signs)])
    first, second = np.unique(pairs, axis=0).T
    cosines, bits = _compare(images, first, second)
    is_copy = _are_copies(cosines, bits, settings)
    return DuplicatePairs(first[is_copy], second[is_copy], cosines[is_copy], bits[is_copy])


def _compare(
    images: AuditedImages, first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the cosine similarities (P,) and the numbers (P,) of different bits of the hashes of pairs of rows."""
    cosines = (images.embeddings[first] * images.embeddings[second]).sum(dim=1).numpy()
    bits = (images.hashes[first] != images.hashes[second]).sum(dim=1).numpy()
    return cosines, bits


def _are_copies(cosines: NDArray[np.float32], bits: NDArray[np.int64], settings: AuditSettings) -> NDArray[np.bool_]:
    return (bits <= settings.copy_bits) & (cosines >= settings.copy_cosine)


def _list_pairs(rows: Tensor, neighbors: int) -> NDArray[np.int64]:
    """Return the pairs (P, 2) of each row and its nearest neighbours, the lower row first."""
    if len(rows) < 2:
        return np.empty((0, 2), dtype=np.int64)
    _, found = nearest_neighbors(rows, min(neighbors, len(rows) - 1))
    pairs = torch.stack([torch.arange(len(rows))[:, None].expand_as(found), found], dim=2).reshape(-1, 2)
    sorted_pairs: NDArray[np.int64] = pairs.sort(dim=1).values.numpy()
    return sorted_pairs


def report_duplicates(images: AuditedImages, pairs: DuplicatePairs) -> list[Finding]:
    """Describe copies: of n images that are copies of each other n - 1 findings, each of an image that may be dropped.

    One image of them is never proposed: the first in a test split, or else the one with the most pixels.
    """
    count = len(images.table)
    distances = coo_matrix((1.01 - pairs.scores, (pairs.first, pairs.second)), shape=(count, count))
    forest = minimum_spanning_tree(distances)
    groups = pairs.group(count)
    is_test = np.isin(images.table.split, TEST_SPLITS)
    order = np.lexsort((np.arange(count), -images.sizes.prod(axis=1), ~is_test))
    number_by_pair = {
        pair: number for number, pair in enumerate(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    }
    findings = []
    _, roots = np.unique(groups[order], return_index=True)
    sizes = np.bincount(groups)
    for root in order[roots].tolist():
        if sizes[groups[root]] == 1:
            continue
        visited, predecessors = breadth_first_order(forest, root, directed=False)
        for row in visited[1:].tolist():
            other = int(predecessors[row])
            findings.append(_describe(images, pairs, number_by_pair[min(row, other), max(row, other)], row, other))
    return sorted(findings, key=lambda finding: -finding.score)


def _describe(images: AuditedImages, pairs: DuplicatePairs, number: int, row: int, other: int) -> Finding:
    table, labels = images.table, images.labels
    names = [images.name_class(labels[i]) for i in (row, other)]
    words = [f"cosine {pairs.cosines[number]:.2f}, {pairs.bits[number]} of 256 bits of the hash differ"]
    splits = [str(table.split[i]) for i in (row, other)]
    if splits[0] != splits[1]:
        crosses = splits[0] in TRAINING_SPLITS and splits[1] in TEST_SPLITS
        words.append(f"in {splits[0]} and in {splits[1]}{': the test flatters the training' if crosses else ''}")
    if names[0] != names[1]:
        words.append("of two classes")
    return Finding(
        issue=NEAR_DUPLICATE,
        score=float(pairs.scores[number]),
        remark="; ".join(words),
        path=str(table.paths[row]),
        label=names[0],
        other_path=str(table.paths[other]),
        other_label=names[1],
        pictures=((row, other),),
    )
