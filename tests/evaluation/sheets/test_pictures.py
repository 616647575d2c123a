from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from dml.evaluation.sheets.pictures import (
    CORRECT,
    PAPER,
    WRONG,
    choose_queries,
    draw_contact_sheet,
    draw_retrieval_sheet,
)
from dml.ops.errors import InputError

BLUE = np.full((20, 20, 3), (40, 60, 200), dtype=np.uint8)


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB"))


def count(image: Any, colour: str) -> int:
    return int((image == ImageColor.getrgb(colour)).all(axis=2).sum())


def test_rows_of_frames_in_the_two_colours(tmp_path: Path) -> None:
    right, wrong = (BLUE, True), (BLUE, False)
    draw_retrieval_sheet([(BLUE, [right, right, right, wrong]), (BLUE, [right, wrong, wrong])], tmp_path / "sheet.png")
    image = pixels(tmp_path / "sheet.png")
    assert image.shape[1] == 800
    assert (image[0] == ImageColor.getrgb(PAPER)).all()
    names = {ImageColor.getrgb(colour): colour for colour in (CORRECT, WRONG)}
    across = [names.get(tuple(pixel.tolist())) for pixel in image[100]]  # through the first row of tiles
    frames = [colour for before, colour in pairwise(across) if colour and colour != before]
    assert frames == [CORRECT] * 6 + [WRONG] * 2  # a left and a right edge each
    assert count(image, CORRECT) > count(image, WRONG) > 1000


def test_marks_tell_without_colour(tmp_path: Path) -> None:
    """The strokes of tick and cross, what is nearly white in the mark, share less than half their pixels."""
    strokes = []
    for correct in (True, False):
        draw_retrieval_sheet([(BLUE, [(BLUE, correct)])], tmp_path / "sheet.png", width=300)
        mark = pixels(tmp_path / "sheet.png")[146:162, 262:278]  # the tile ends at 164 down, 280 across
        strokes.append(mark.min(axis=2) > 170)
    assert all(stroke.sum() > 15 for stroke in strokes)
    assert 2 * (strokes[0] & strokes[1]).sum() < (strokes[0] | strokes[1]).sum()


def test_every_kind_of_picture_and_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = [
        rng.integers(0, 256, (40, 90, 3), dtype=np.uint8),
        torch.zeros(3, 17, 500),
        torch.ones(3, 1, 1, dtype=torch.uint8),
        torch.full((3, 8, 8), 2.0, dtype=torch.bfloat16),
        torch.rand(3, 8, 8, requires_grad=True, generator=torch.Generator().manual_seed(0)),
    ]
    draw_retrieval_sheet(
        [(kind, [(other, True) for other in kinds]) for kind in kinds], tmp_path / "sheet.png", width=640
    )
    assert pixels(tmp_path / "sheet.png").shape[1] == 640


def test_tensor_and_array_draw_the_same(tmp_path: Path) -> None:
    tensor = torch.from_numpy(BLUE).permute(2, 0, 1)
    for name, picture in (("array", BLUE), ("tensor", tensor), ("float", tensor / 255)):
        draw_retrieval_sheet([(picture, [(picture, False)])], tmp_path / name)
    files = [(tmp_path / name).read_bytes() for name in ("array", "tensor", "float")]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize(
    ("rows", "width", "message"),
    [
        ([], 800, "no query"),
        ([(BLUE, [])], 800, "no query"),
        ([(BLUE, [(BLUE[..., :2], True)])], 800, "picture of shape"),
        ([(BLUE / 255, [(BLUE, True)])], 800, "float64, expected uint8"),
        ([(torch.zeros(8, 8), [(BLUE, True)])], 800, "picture of shape"),
    ],
)
def test_errors(tmp_path: Path, rows: Any, width: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_retrieval_sheet(rows, tmp_path / "sheet.png", width=width)
    assert not (tmp_path / "sheet.png").exists()


def test_a_sheet_of_many_neighbours_is_wider(tmp_path: Path) -> None:
    for number, width in [(16, 800), (30, 2 * 20 + 22 + 32 + 30 * (32 + 10))]:
        draw_retrieval_sheet([(BLUE, [(BLUE, True)] * number)], tmp_path / "sheet.png", width=800)
        assert pixels(tmp_path / "sheet.png").shape[1] == width


def test_chosen_queries_are_a_uniform_sample_by_seed() -> None:
    chosen = choose_queries(1000, 12, seed=4)
    assert np.array_equal(chosen, choose_queries(1000, 12, seed=4))
    assert not np.array_equal(chosen, choose_queries(1000, 12, seed=5))
    assert len(np.unique(chosen)) == 12
    assert np.array_equal(chosen, np.sort(chosen))
    assert np.array_equal(choose_queries(3, 3), [0, 1, 2])
    drawn = np.bincount(np.concatenate([choose_queries(10, 3, seed) for seed in range(1000)]), minlength=10)
    assert drawn.min() > 240  # of 300 expected, standard deviation 14
    assert drawn.max() < 360


@pytest.mark.parametrize("number", [0, 6])
def test_more_queries_than_there_are(number: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 5"):
        choose_queries(5, number)


# contact sheets


def test_a_contact_sheet_has_a_line_a_title(tmp_path: Path) -> None:
    draw_contact_sheet([("one", [BLUE] * 4), ("two", [BLUE] * 2), ("", [BLUE])], tmp_path / "sheet.png", width=400)
    image = pixels(tmp_path / "sheet.png")
    blue = (image == BLUE[0, 0]).all(axis=2)
    runs = [sum(1 for before, now in pairwise(line) if now and not before) for line in blue]
    assert image.shape[1] == 400
    assert [count for before, count in pairwise([0, *runs]) if count and not before] == [4, 2, 1]
    titles = (image.min(axis=2) < 128) & ~blue
    assert titles.any(axis=1).sum() > 10
    assert blue.sum() > 7 * 70 * 70


def test_a_contact_sheet_is_a_function_of_its_pictures(tmp_path: Path) -> None:
    for name in ("first.png", "second.png"):
        draw_contact_sheet([("a title", [BLUE, BLUE])], tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()


@pytest.mark.parametrize("rows", [[], [("nothing", [])]])
def test_a_contact_sheet_of_nothing(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contact sheet: no picture to show"):
        draw_contact_sheet(rows, tmp_path / "sheet.png")


def test_a_contact_sheet_of_many_pictures_is_wider(tmp_path: Path) -> None:
    for number, width in [(4, 200), (9, 2 * 20 + 9 * 32 + 8 * 10)]:
        draw_contact_sheet([("many", [BLUE] * number)], tmp_path / "sheet.png", width=200)
        with Image.open(tmp_path / "sheet.png") as sheet:
            assert sheet.width == width
