"""Near duplicates of made-up embeddings and pictures: against loops over all pairs, and parts of pictures."""

from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dml.evaluation.near_duplicates import NearDuplicates, find_near_duplicates, hash_pictures, read_small_pictures

LABELS = np.repeat(np.arange(6), 12)


def draw_pictures(count: int, side: int = 32) -> torch.Tensor:
    """Draw smooth pictures (N, side, side) of gray values from 0 to 255, the same for each side."""
    coarse = 255 * torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 255)[:, 0]


def draw_embeddings(labels: npt.NDArray[np.int64], noise: float = 0.4) -> torch.Tensor:
    """Draw embeddings (N, 16) around the centers of their classes."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(int(labels.max()) + 1, 16, generator=rng)
    return F.normalize(centers[torch.from_numpy(labels)] + noise * torch.randn(len(labels), 16, generator=rng), dim=1)


def find(
    embeddings: torch.Tensor, pictures: torch.Tensor, order: npt.NDArray[np.int64] | None = None
) -> NearDuplicates:
    return find_near_duplicates(embeddings, pictures, LABELS, np.arange(len(LABELS)) if order is None else order)


def hash_slowly(picture: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """The lowest 16 x 16 frequencies of the cosine transform, by its formula, above their median."""
    side = len(picture)
    places = np.pi * (np.arange(side) + 0.5) / side
    waves = np.array([np.cos(places * number) for number in range(16)])
    frequencies = waves @ picture @ waves.T
    return (frequencies > np.median(frequencies)).reshape(-1)


def test_hashes_are_those_of_the_formula() -> None:
    pictures = draw_pictures(5)
    expected = [hash_slowly(picture.double().numpy()) for picture in pictures]
    np.testing.assert_array_equal(hash_pictures(pictures).numpy(), expected)


def test_near_duplicates_are_those_of_a_loop_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    labels, count = np.arange(20), 20  # so few that each image is among the nearest of each other
    pictures, embeddings = draw_pictures(count), draw_embeddings(labels)
    for copy, original in ((3, 1), (7, 1), (8, 7), (12, 11), (19, 0)):
        pictures[copy] = pictures[original] + 8 * torch.from_numpy(rng.normal(size=(32, 32))).float()
        embeddings[copy] = F.normalize(
            embeddings[original] + 0.1 * torch.from_numpy(rng.normal(size=16)).float(), dim=0
        )
    embeddings[12] = -embeddings[11]  # equal pictures of images that are nothing alike
    order = rng.permutation(count)
    bits = [hash_slowly(picture.double().numpy()) for picture in pictures]
    score, groups = {}, list(range(count))
    for i, j in combinations(range(count), 2):
        cosine, differing = float(embeddings[i] @ embeddings[j]), int((bits[i] != bits[j]).sum())
        if cosine >= 0.3 and differing <= 30:
            score[i, j] = (cosine + 1 - differing / 128) / 2
            groups = [groups[i] if group == groups[j] else group for group in groups]
    kept = {next(row for row in order.tolist() if groups[row] == group) for group in groups}
    expected = {}
    for row in set(range(count)) - kept:
        own = [pair for pair in score if row in pair]
        best = max(own, key=lambda pair: (bool(kept & {*pair}), score[pair]))
        expected[row] = (sum(best) - row, score[best])
    found = find_near_duplicates(embeddings, pictures, labels, order)
    assert dict(zip(found.rows.tolist(), found.others.tolist(), strict=True)) == {
        i: j for i, (j, _) in expected.items()
    }
    assert len(expected) == 4
    np.testing.assert_allclose(found.scores, sorted((value for _, value in expected.values()), reverse=True), rtol=1e-6)
    for i, j in combinations(range(count), 2):
        assert (found.groups[i] == found.groups[j]) == (groups[i] == groups[j])


def test_all_of_many_copies_are_of_one_group_and_the_first_in_order_is_kept() -> None:
    embeddings, pictures = draw_embeddings(LABELS), draw_pictures(72)
    copies = [*range(0, 72, 3)]
    embeddings[copies], pictures[copies] = embeddings[0].clone(), pictures[0].clone()
    found = find(embeddings, pictures, np.arange(72)[::-1])
    assert sorted(found.rows.tolist()) == copies[:-1]
    assert len({*found.groups[copies].tolist()}) == 1
    assert len({*found.groups.tolist()}) == 72 - len(copies) + 1


@pytest.mark.parametrize(
    "change", ["crop", "wide crop", "narrow crop", "mirrored crop", "mirrored", "other class", "other picture"]
)
@pytest.mark.data_sets
def test_a_part_of_a_picture_is_a_near_duplicate(change: str) -> None:
    """Unless it is mirrored and of another class: two classes may differ in left and right."""
    embeddings, pictures = draw_embeddings(LABELS), draw_pictures(72)
    whole = draw_pictures(72, side=320)[0]
    places = {"mirrored": (0, 0, 320, 320), "wide crop": (90, 0, 200, 320), "narrow crop": (12, 62, 247, 203)}
    top, left, height, width = places.get(change, (30, 60, 260, 240))
    part = whole[top : top + height, left : left + width].clone()
    row = 40 if change == "other class" else 7
    part = part.flip(1) if change in ("mirrored", "mirrored crop", "other class") else part
    part = draw_pictures(72, side=320)[50] if change == "other picture" else part
    pictures[row] = F.interpolate(part[None, None], (32, 32), mode="area")[0, 0]
    embeddings[row] = F.normalize(embeddings[0] + 0.1, dim=0)
    found = find(embeddings, pictures)
    pairs = [*zip(found.rows.tolist(), found.others.tolist(), strict=True)]
    assert pairs == ([] if "other" in change else [(7, 0)])


def test_pictures_of_one_color_are_parts_of_none() -> None:
    embeddings, pictures = draw_embeddings(LABELS), draw_pictures(72)
    embeddings[:] = embeddings[0].clone()
    pictures[5], pictures[6] = 128, 130
    found = find(embeddings, pictures)
    assert [*zip(found.rows.tolist(), found.others.tolist(), strict=True)] == [(6, 5)]


def test_small_pictures_are_gray_squares_in_the_order_of_the_paths(tmp_path: Path) -> None:
    advanced, paths = list[int](), [str(tmp_path / f"{number}.png") for number in range(5)]
    for number, path in enumerate(paths):
        Image.new("RGB", (40 + number, 90), (50 * number, 50 * number, 50 * number)).save(path)
    small = read_small_pictures(paths, advanced.append)
    assert small.shape == (5, 32, 32)
    assert small.amin((1, 2)).tolist() == small.amax((1, 2)).tolist() == [0, 50, 100, 150, 200]
    assert sum(advanced) == 5
