from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dml.data.image_files.contents import hash_content, read_sizes, read_stamps
from dml.data.image_files.images import Box, ImageFile, UnreadableImageError, read_image
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import find_part, name_part, split_part
from dml.data.table import ImageTable
from dml.data.transforms import RandomResizedCrop
from dml.runtime.errors import InputError


def write(path: Path, *, turned: bool = False) -> Image.Image:
    """Write noise of 40 x 30 pixels, stored lying on its side or not -> the upright image."""
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    (upright.transpose(Image.Transpose.ROTATE_90) if turned else upright).save(path, exif=exif)
    return upright


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_box_is_in_pixels_of_the_upright_image(tmp_path: Path, turned: bool) -> None:
    upright = write(tmp_path / "a.png", turned=turned)
    file = ImageFile(f"{tmp_path}/a.png#5,10,25,28")
    assert (file.height, file.width, file.size) == (18, 20, (30, 40))
    assert torch.equal(file.pixels(), pixels(upright.crop((5, 10, 25, 28))))


@given(data=st.data())
def test_a_margin_ends_at_the_image(data: st.DataObject) -> None:
    height, width = (data.draw(st.integers(1, 60)) for _ in range(2))
    left, right = sorted(data.draw(st.lists(st.integers(0, width), min_size=2, max_size=2, unique=True)))
    top, bottom = sorted(data.draw(st.lists(st.integers(0, height), min_size=2, max_size=2, unique=True)))
    margin = data.draw(st.sampled_from([0.0, 0.1, 0.5, 3.0]))
    box = Box(*find_part((left, top, right, bottom), height, width, margin))
    columns = [
        x for x in range(width) if left - round(margin * (right - left)) <= x < right + round(margin * (right - left))
    ]
    rows = [
        y for y in range(height) if top - round(margin * (bottom - top)) <= y < bottom + round(margin * (bottom - top))
    ]
    assert (box.left, box.width, box.top, box.height) == (columns[0], len(columns), rows[0], len(rows))


def test_a_margin_is_read(tmp_path: Path) -> None:
    upright = write(tmp_path / "a.png")
    found = read_image(f"{tmp_path}/a.png#5,10,25,28", ImageLimits(box_margin=0.5))
    assert torch.equal(found, pixels(upright.crop((0, 1, 35, 30))))


def test_a_transform_draws_within_the_part(tmp_path: Path) -> None:
    upright = write(tmp_path / "a.png")
    crop = RandomResizedCrop(8)
    results = []
    for image in (ImageFile(f"{tmp_path}/a.png#5,10,25,28"), pixels(upright.crop((5, 10, 25, 28)))):
        torch.manual_seed(3)
        results.append(crop(image))
    assert torch.equal(*results)


@pytest.mark.parametrize("box", ["0,0,41,30", "0,0,40,31", "7,2,7,9", "9,2,7,9", "-1,0,4,4"])
def test_a_box_outside_of_the_image_is_named(tmp_path: Path, box: str) -> None:
    write(tmp_path / "a.png")
    with pytest.raises(UnreadableImageError, match=rf"a\.png#{box}: the box {box} isn't inside of its 40 x 30 pixels"):
        ImageFile(f"{tmp_path}/a.png#{box}")


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(InputError, match=r"^data\.box_margin=-0\.1: must be a finite number, 0 or more"):
        ImageLimits(box_margin=-0.1)


def test_the_file_of_a_part_is_that_of_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "a.png")
    write(tmp_path / "a.png")
    part, other = name_part(path, (0, 0, 4, 4)), name_part(path, (0, 0, 4, 5))
    assert split_part(part) == (path, (0, 0, 4, 4))
    assert read_sizes([part]) == read_sizes([path])
    assert read_stamps([part]).tolist() == read_stamps([path]).tolist()
    assert len({*map(hash_content, (path, part, other))}) == 3
    strange = "a#1,2,3.png"
    assert split_part(strange) == (strange, ())


def test_a_frame_has_boxes() -> None:
    columns = {"x_1": [1, None, 0], "y_1": [2, None, 0], "x_2": [5, None, 9], "y_2": [6.0, None, 9.0]}
    frame = pd.DataFrame({"path": ["a.png", "a.png", "b.png"], "label": ["x", "y", "x"], **columns})
    for typed in (frame, frame.astype({"x_1": "Int64"})):
        table = ImageTable.from_frame(typed)
        assert table.boxes.tolist() == [[1, 2, 5, 6], [-1] * 4, [0, 0, 9, 9]]
        assert table.paths.tolist() == ["a.png", "a.png", "b.png"]
        assert table.locations.tolist() == ["a.png#1,2,5,6", "a.png", "b.png#0,0,9,9"]
        assert table.take(np.array([2])).boxes.tolist() == [[0, 0, 9, 9]]
    with pytest.raises(InputError, match="table: no column 'y_2'"):
        ImageTable.from_frame(frame.drop(columns="y_2"))
    with pytest.raises(
        InputError, match=r"table, row 0: the box '1\.5,2\.0,5\.0,6\.0', expected x_1,y_1,x_2,y_2 in whole"
    ):
        ImageTable.from_frame(frame.assign(x_1=[1.5, None, 0]))


def test_boxes_that_are_none_are_refused() -> None:
    table = ImageTable.from_frame(pd.DataFrame({"path": ["a.png"], "label": ["x"]}))
    for boxes in (np.zeros((1, 3), np.int64), np.zeros((1, 4)), np.zeros((2, 4), np.int64)):
        with pytest.raises(InputError, match=r"image table: .*boxes"):
            ImageTable(table.paths, table.labels, table.split, table.levels, boxes=boxes)
