"""Images that are copies of each other: scaled, stored again, cropped, mirrored, or of the same moment."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.fft import dctn
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from dml.data.table import TEST_SPLITS, TRAINING_SPLITS
from dml.evaluation.audit.findings import NEAR_DUPLICATE, AuditedImages, AuditSettings, Finding
from dml.retrieval.search import nearest_neighbors

TINY = 1e-6
HASH_SIDE = 16
"""The side of the square of frequencies that the perceptual hash keeps: 16 x 16 = 256 bits."""
BLOCK = 1024
"""Number of pairs that are compared at a time."""
SPANS = [(start, size) for size, n in ((1, 1), (0.85, 3), (0.7, 4), (0.55, 5)) for start in np.linspace(0, 1 - size, n)]
PLACES = torch.tensor([(x, y, x + width, y + height) for x, width in SPANS for y, height in SPANS]).float()
"""The places (169, 4), left, top, right and bottom from 0 to 1, where a part of a picture is looked for first."""
MOVE = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1], [-0.5, -0.5, 0.5, 0.5]])
MOVES = torch.cat([torch.zeros(1, 4), MOVE, -MOVE])
"""The changes (11, 4) of a place that are tried, in steps."""
ROUNDS = 15
"""The number of times that a place is changed at each of the `LEVELS`."""
LEVELS = ((8, 0.06, 0.88), (16, 0.04, 0.93), (32, 0.03, 0.9))
"""Pixels a side, first step, and least correlation of a part, by which its place is refined."""
FIRST_CORRELATION = 0.7
"""The least correlation, of 8 x 8 pixels, of a part whose place is refined."""
SMALLEST = 0.45
"""The smallest width and height of a part."""


@dataclass(frozen=True)
class DuplicatePairs:
    """Pairs of images that are copies of each other.

    ``first`` and ``second`` (P,) are rows, the lower one first; ``bits`` (P,) of the perceptual hashes differ.
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

    def list_copies(self, count: int) -> list[list[int]]:
        """Return for each of ``count`` images the rows of its group, itself among them."""
        groups = self.group(count)
        members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
        rows = [group.tolist() for group in members]
        return [rows[group] for group in groups]


def find_duplicate_pairs(images: AuditedImages, settings: AuditSettings) -> DuplicatePairs:
    """Find the pairs of copies among the nearest neighbors of each image, by embedding and by perceptual hash.

    A pair are copies if at most ``copy_bits`` of 256 bits of their hashes differ and their cosine similarity is at
    least ``copy_cosine``. The similarity alone shows no copies: in a trained network a whole class may be as near. If
    the hashes of two pictures differ, that of one is compared with that of the most similar part of the other; within a
    class also with that of its mirror image. Other classes may be left and right.
    """
    hashes, labels = hash_pictures(images.pictures), images.labels
    signs = 2 * hashes.float() - 1  # their dot product is 256 - 2 different bits
    pairs = _list_pairs(images.embeddings, 2 * settings.neighbors), _list_pairs(signs, settings.neighbors)
    rows = np.unique(np.concatenate(pairs), axis=0)
    cosines = (images.embeddings[rows[:, 0]] * images.embeddings[rows[:, 1]]).sum(dim=1).numpy()
    (first, second), cosines = rows[cosines >= settings.copy_cosine].T, cosines[cosines >= settings.copy_cosine]
    bits = (hashes[first] != hashes[second]).sum(dim=1).numpy()
    for sought, may_match in ((images.pictures, True), (images.pictures.flip(-1), labels[first] == labels[second])):
        for wholes, parts in ((first, second), (second, first)):
            open_pairs = np.flatnonzero((bits > settings.copy_bits) & may_match)
            order = open_pairs[np.argsort(wholes[open_pairs], kind="stable")]
            for block in np.split(order, range(BLOCK, len(order), BLOCK)):
                bits[block] = np.minimum(bits[block], _find_parts(images.pictures, wholes[block], sought[parts[block]]))
    is_copy = bits <= settings.copy_bits
    return DuplicatePairs(first[is_copy], second[is_copy], cosines[is_copy], bits[is_copy])


def hash_pictures(pictures: Tensor) -> Tensor:
    """Return which low frequencies of gray pictures (N, S, S) are above their median: 256 bits (N, 256).

    A picture keeps almost all bits when it is scaled or stored as a JPEG file.
    """
    frequencies = dctn(pictures.double().numpy(), axes=(1, 2))[:, :HASH_SIDE, :HASH_SIDE].reshape(-1, HASH_SIDE**2)
    medians = np.median(frequencies, axis=1, keepdims=True)
    return torch.from_numpy(frequencies > medians + TINY)  # a picture of one color has rounding errors around 0


def _find_parts(pictures: Tensor, whole_rows: NDArray[np.int64], sought: Tensor) -> NDArray[np.int64]:
    """Compare the hashes of pictures with those of the parts of others that are most similar to them.

    Args:
        pictures: (N, S, S) gray values.
        whole_rows: (B,) rows of the pictures whose parts are compared; equal ones stand together, which saves time.
        sought: (B, S, S) gray values of the pictures that may be such parts.

    Returns:
        The numbers (B,) of different bits; 256 where nothing is similar.
    """
    unique_rows, counts = np.unique(whole_rows, return_counts=True)
    parts = _sample(pictures[unique_rows], PLACES, LEVELS[0][0])
    groups = torch.split(_sample(sought, PLACES[:1], LEVELS[0][0])[:, 0], counts.tolist())
    best_parts = [(targets @ own_parts.T).max(dim=1) for targets, own_parts in zip(groups, parts, strict=True)]
    correlations, nearest = (torch.cat(column) for column in zip(*best_parts, strict=True))
    rows = torch.nonzero(correlations >= FIRST_CORRELATION).flatten()
    places = PLACES[nearest[rows]]
    for side, step, least in LEVELS:
        wholes, targets = pictures[whole_rows][rows], _sample(sought[rows], PLACES[:1], side)
        steps = torch.full((len(rows), 1, 1), step)
        for _ in range(ROUNDS):
            tried = (places[:, None] + steps * MOVES).clamp(0, 1)
            correlations, best = (_sample(wholes, tried, side) @ targets.mT)[..., 0].max(dim=1)
            places = tried[torch.arange(len(tried)), best]
            steps = torch.where(best[:, None, None] == 0, steps / 2, steps)
        is_similar = (correlations >= least) & (places[:, 2:] - places[:, :2] >= SMALLEST).all(dim=1)
        rows, places, targets, wholes = rows[is_similar], places[is_similar], targets[is_similar], wholes[is_similar]
    parts = _sample(wholes, places[:, None], side)
    hashes = [hash_pictures(squares.view(-1, side, side)) for squares in (parts, targets)]
    bits = np.full(len(sought), HASH_SIDE**2)
    bits[rows.numpy()] = (hashes[0] != hashes[1]).sum(dim=1).numpy()
    return bits


def _sample(pictures: Tensor, places: Tensor, side: int) -> Tensor:
    """Scale K parts of each picture (B, S, S) at places (B, K, 4) -> (B, K, side * side), of mean 0 and length 1."""
    corners = places.expand(len(pictures), -1, -1)[..., None]
    positions = (torch.arange(2 * side) + 0.5) / (2 * side)  # four values for each pixel of the part
    x, y = (corners[:, :, i] + (corners[:, :, i + 2] - corners[:, :, i]) * positions for i in (0, 1))
    grid = torch.stack(
        [x[:, :, None, :].expand(-1, -1, 2 * side, -1), y[..., None].expand(-1, -1, -1, 2 * side)], dim=-1
    )
    values = F.grid_sample(pictures[:, None], 2 * grid.flatten(1, 2) - 1, padding_mode="border", align_corners=False)
    values = F.avg_pool2d(values, 2).view(*corners.shape[:2], side * side)
    return F.normalize(values - values.mean(dim=2, keepdim=True), dim=2, eps=1.0)


def _list_pairs(rows: Tensor, neighbors: int) -> NDArray[np.int64]:
    """Return the pairs (P, 2) of each row and its nearest neighbors, the lower row first."""
    if len(rows) < 2:
        return np.empty((0, 2), dtype=np.int64)
    _, nearest = nearest_neighbors(rows, min(neighbors, len(rows) - 1))
    pairs = torch.stack([torch.arange(len(rows))[:, None].expand_as(nearest), nearest], dim=2).reshape(-1, 2)
    sorted_pairs: NDArray[np.int64] = pairs.sort(dim=1).values.numpy()
    return sorted_pairs


def report_duplicates(images: AuditedImages, pairs: DuplicatePairs) -> list[Finding]:
    """Describe copies: of n images that are copies of each other n - 1 findings, each of an image that may be dropped.

    One image of them is never proposed: the first in a test split, or else the one with the most pixels.
    """
    count = len(images.table)
    order = np.lexsort((np.arange(count), -images.sizes.prod(axis=1), ~np.isin(images.table.split, TEST_SPLITS)))
    kept_rows = {*order[np.unique(pairs.group(count)[order], return_index=True)[1]].tolist()}
    is_with_kept = np.isin(pairs.first, [*kept_rows]) | np.isin(pairs.second, [*kept_rows])
    best_pairs: dict[int, int] = {}
    for number in np.lexsort((-pairs.scores, ~is_with_kept)).tolist():
        for row in (int(pairs.first[number]), int(pairs.second[number])):
            best_pairs.setdefault(row, number)
    findings = [_describe(images, pairs, number, row) for row, number in best_pairs.items() if row not in kept_rows]
    return sorted(findings, key=lambda finding: -finding.score)


def _describe(images: AuditedImages, pairs: DuplicatePairs, number: int, row: int) -> Finding:
    other = int(pairs.first[number] + pairs.second[number]) - row
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
