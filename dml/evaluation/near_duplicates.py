"""Near duplicates: pictures that were scaled, stored again, cropped or mirrored, or are of the same moment."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from dml.data.images import LIMITS, ImageLimits, read_image
from dml.retrieval.search import nearest_neighbors

SIDE = 32
"""Height and width of the small pictures by which near duplicates are found."""
MOST_BITS, LEAST_COSINE = 30, 0.3
"""The largest number of different bits, of 256, and the smallest cosine similarity of near duplicates."""
NEIGHBORS = 10  # by hash; by embedding twice as many
HASH_SIDE = 16  # of the square of frequencies that a hash keeps: 16 x 16 = 256 bits
BLOCK = 1024  # pairs that are compared at a time
SPANS = [(start, size) for size, n in ((1, 1), (0.85, 3), (0.7, 4), (0.55, 5)) for start in np.linspace(0, 1 - size, n)]
PLACES = torch.tensor([(x, y, x + width, y + height) for x, width in SPANS for y, height in SPANS]).float()
"""The places (169, 4), left, top, right and bottom from 0 to 1, where a part of a picture is looked for first."""
MOVE = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1], [-0.5, -0.5, 0.5, 0.5]])
MOVES = torch.cat([torch.zeros(1, 4), MOVE, -MOVE])
"""The changes (11, 4) of a place that are tried, in steps."""
LEVELS, ROUNDS = ((8, 0.06, 0.88), (16, 0.04, 0.93), (32, 0.03, 0.9)), 15
"""Pixels a side, first step, and least correlation of a part, by which its place is refined, in so many rounds."""
FIRST_CORRELATION, SMALLEST = 0.7, 0.45
"""The least correlation of a part, of 8 x 8 pixels, whose place is refined, and its smallest width and height."""


class NearDuplicates(NamedTuple):
    """Images that may be dropped, the surest first: of n near duplicates n - 1."""

    rows: NDArray[np.int64]  # (P,)
    others: NDArray[np.int64]  # (P,) rows that they are compared with
    cosines: NDArray[np.float32]  # (P,) similarities
    bits: NDArray[np.int64]  # (P,) numbers of different bits of the hashes
    scores: NDArray[np.float64]  # (P,) mean of the similarity and the correlation of the hashes, 1 for equal images
    groups: NDArray[np.int64]  # (N,) equal for near duplicates


def read_small_pictures(paths: Sequence[str], advance: Callable[[int], None], limits: ImageLimits = LIMITS) -> Tensor:
    """Read images, and scale each to a square of 32 x 32 gray values, whatever its proportions -> (N, 32, 32)."""

    def read(path: str) -> NDArray[np.float32]:
        pixels = read_image(path, limits).permute(1, 2, 0)
        picture = Image.fromarray(pixels.numpy()).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(picture, dtype=np.float32)

    pictures = torch.empty(len(paths), SIDE, SIDE)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for row, picture in enumerate(threads.map(read, paths)):
            pictures[row] = torch.from_numpy(picture)
            advance(1)
    return pictures


def find_near_duplicates(
    embeddings: Tensor, pictures: Tensor, labels: NDArray[np.int64], order: NDArray[np.int64]
) -> NearDuplicates:
    """Find near duplicates among the nearest neighbors of each of N > 1 images, by embedding and by perceptual hash.

    The hashes of a pair differ in at most `MOST_BITS`, and their cosine similarity is at least `LEAST_COSINE`. The
    similarity alone shows no copies: in a trained network a whole class may be as near. If the hashes of two pictures
    differ, that of one is compared with that of the most similar part of the other; within a class also with that of
    its mirror image. Other classes may be left and right.

    Args:
        embeddings: (N, D) L2-normalized embeddings, see `dml.evaluation.raw_features.spread_embeddings`.
        pictures: (N, S, S) gray values, float32.
        order: (N,) rows of all images; of a group of near duplicates the first is kept, and the others are compared
            with it if they can be.
    """
    hashes = hash_pictures(pictures)
    signs = 2 * hashes.float() - 1  # their dot product is 256 - 2 different bits
    rows = np.unique(np.concatenate([_list_pairs(embeddings, 2 * NEIGHBORS), _list_pairs(signs, NEIGHBORS)]), axis=0)
    cosines = (embeddings[rows[:, 0]] * embeddings[rows[:, 1]]).sum(dim=1).numpy()
    (first, second), cosines = rows[cosines >= LEAST_COSINE].T, cosines[cosines >= LEAST_COSINE]
    bits = (hashes[first] != hashes[second]).sum(dim=1).numpy()
    for sought, may_match in ((pictures, True), (pictures.flip(-1), labels[first] == labels[second])):
        for wholes, parts in ((first, second), (second, first)):
            open_pairs = np.flatnonzero((bits > MOST_BITS) & may_match)
            sorted_pairs = open_pairs[np.argsort(wholes[open_pairs], kind="stable")]
            for start in range(0, len(sorted_pairs), BLOCK):
                block = sorted_pairs[start : start + BLOCK]
                bits[block] = np.minimum(bits[block], _find_parts(pictures, wholes[block], sought[parts[block]]))
    is_near = bits <= MOST_BITS
    first, second, cosines, bits = first[is_near], second[is_near], cosines[is_near], bits[is_near]
    scores = (cosines + 1 - bits / 128) / 2
    links = coo_matrix((np.ones(len(first)), (first, second)), shape=(len(order), len(order)))
    groups: NDArray[np.int64] = connected_components(links, directed=False)[1]
    is_kept = np.isin(np.arange(len(order)), order[np.unique(groups[order], return_index=True)[1]])
    best_first = np.lexsort((-scores, ~(is_kept[first] | is_kept[second])))
    dropped, places = np.unique(np.stack([first, second], axis=1)[best_first], return_index=True)
    dropped, places = dropped[~is_kept[dropped]], places[~is_kept[dropped]]
    surest = np.lexsort((places, -scores[best_first[places // 2]]))
    dropped, pairs = dropped[surest], best_first[places[surest] // 2]
    kept = first[pairs] + second[pairs] - dropped
    return NearDuplicates(dropped, kept, cosines[pairs], bits[pairs], scores[pairs], groups)


def hash_pictures(pictures: Tensor) -> Tensor:
    """Return which of 256 low frequencies of gray pictures (N, S, S) are above their median -> (N, 256) bool."""
    frequencies = dctn(pictures.double().numpy(), axes=(1, 2))[:, :HASH_SIDE, :HASH_SIDE].reshape(-1, HASH_SIDE**2)
    medians = np.median(frequencies, axis=1, keepdims=True)
    return torch.from_numpy(frequencies > medians + 1e-6)  # a picture of one color has rounding errors around 0


def _find_parts(pictures: Tensor, whole_rows: NDArray[np.int64], sought: Tensor) -> NDArray[np.int64]:
    """Compare hashes of pictures (B, S, S) with those of the most similar parts of ``whole_rows`` -> different bits."""
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
    bits = np.full(len(sought), HASH_SIDE**2)  # where nothing is similar
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
    nearest = nearest_neighbors(rows, neighbors)[1].numpy()
    pairs = np.stack([np.repeat(np.arange(len(rows)), nearest.shape[1]), nearest.reshape(-1)], axis=1)
    return np.sort(pairs, axis=1)
