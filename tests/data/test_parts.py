from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from dml.data.contents import hash_content, name_part, read_sizes, read_stamps, split_part
from dml.data.images import ImageFile, UnreadableImageError
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
        assert table.paths.tolist() == ["a.png#1,2,5,6", "a.png", "b.png#0,0,9,9"]
        assert table.content.tolist() == [0, 0, 1]  # parts of one image exclude each other
    with pytest.raises(InputError, match="table: no column 'y_2'"):
        ImageTable.from_frame(frame.drop(columns="y_2"))
    with pytest.raises(InputError, match=r"table, row 0: the box '1\.5,2\.0,5\.0,6\.0', expected x_1,y_1,x_2,y_2 in"):
        ImageTable.from_frame(frame.assign(x_1=[1.5, None, 0]))
