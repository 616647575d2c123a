from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from torch import Tensor

from dml.report.pictures import COLORS, OTHER, PAPER, QUERY, SAME, choose_queries, draw_sheet, is_sheet
from dml.runtime.errors import InputError

BLUE = torch.tensor([40, 60, 200], dtype=torch.uint8)[:, None, None].expand(3, 20, 20)


def read_blue(path: str) -> Tensor:
    return BLUE


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB"))


def count(image: Any, color: str) -> int:
    return int((image == ImageColor.getrgb(color)).all(axis=2).sum())


def row(*relations: str, title: str = "a class") -> tuple[str, list[tuple[str, str]]]:
    return title, [("", relation) for relation in relations]


def test_rows_of_frames_in_the_colors_of_the_relations(tmp_path: Path) -> None:
    rows = [row(QUERY, SAME, SAME, OTHER, OTHER), row(QUERY, SAME, OTHER, OTHER)]
    draw_sheet(rows, tmp_path / "sheet.png", read_blue, legend={SAME: "same", OTHER: "other"})
    image = pixels(tmp_path / "sheet.png")
    assert image.shape[1] == 800
    assert (image[0] == ImageColor.getrgb(PAPER)).all()
    names = {ImageColor.getrgb(COLORS[relation]): relation for relation in (SAME, OTHER)}
    across = [names.get(tuple(pixel.tolist())) for pixel in image[100]]  # through the first row of tiles
    frames = [color for before, color in pairwise(across) if color and color != before]
    assert frames == [SAME] * 4 + [OTHER] * 4  # a left and a right edge each
    for relation in (SAME, OTHER):
        assert count(image, COLORS[relation]) > 1000
    draw_sheet([row(QUERY, "", "")], tmp_path / "plain.png", read_blue)  # what is unsure has no mark
    assert not any(count(pixels(tmp_path / "plain.png"), COLORS[relation]) for relation in (SAME, OTHER))


def test_pictures_of_every_size_are_read_one_at_a_time(tmp_path: Path) -> None:
    sizes = [(40, 90), (17, 500), (1, 1), (8, 8)]
    read: list[str] = []

    def read_picture(path: str) -> Tensor:
        read.append(path)
        return torch.zeros(3, *sizes[int(path)], dtype=torch.uint8)

    paths = [(str(i), SAME) for i in range(4)]
    draw_sheet([("one", paths), ("two", paths[::-1])], tmp_path / "sheet.png", read_picture, width=640)
    assert pixels(tmp_path / "sheet.png").shape[1] == 640
    assert read == [*"0123", *"3210"]


def test_a_sheet_of_many_pictures_is_wider(tmp_path: Path) -> None:
    for relations, width in (
        ((QUERY, *[SAME] * 16), 800),
        ((QUERY, *[SAME] * 30), 2 * 20 + 22 + 31 * 42 - 10),
        (("",) * 25, 2 * 20 + 25 * 42 - 10),
    ):
        draw_sheet([row(*relations)], tmp_path / "sheet.png", read_blue, width=800)
        assert pixels(tmp_path / "sheet.png").shape[1] == width
    for rows in ([], [("nothing", [])]):
        with pytest.raises(InputError, match="sheet: no picture to show"):
            draw_sheet(rows, tmp_path / "none.png", read_blue)


def test_chosen_queries_are_a_uniform_sample_by_seed() -> None:
    chosen = choose_queries(1000, 12, seed=4)
    assert np.array_equal(chosen, choose_queries(1000, 12, seed=4))
    assert not np.array_equal(chosen, choose_queries(1000, 12, seed=5))
    assert len(np.unique(chosen)) == 12
    assert np.array_equal(chosen, np.sort(chosen))
    assert np.array_equal(choose_queries(3, 8), [0, 1, 2])
    drawn = np.bincount(np.concatenate([choose_queries(10, 3, seed) for seed in range(1000)]), minlength=10)
    assert drawn.min() > 240  # of 300 expected, standard deviation 14
    assert drawn.max() < 360


def test_a_sheet_is_a_function_of_its_pictures_and_is_known_as_one(tmp_path: Path) -> None:
    for name in ("first.png", "second.png"):
        draw_sheet([row(QUERY, SAME)], tmp_path / name, read_blue, legend={SAME: "same"})
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
    assert is_sheet(tmp_path / "first.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    assert not is_sheet(tmp_path / "photo.png")
