"""The boxes of lists: of a .csv file, and of the benchmarks that have some."""

import pickle
from pathlib import Path

import pytest
from trees.inshop import TREE as INSHOP
from trees.inshop import rows
from trees.roxford5k import LIST, TRUTH
from trees.roxford5k import TREE as ROXFORD
from trees.tree import write_lines

from dml.data.readers import csv, inshop, roxford
from dml.data.table import ImageTable, find_faults
from dml.runtime.errors import InputError

HEADER = "path,label,x_1,x_2,y_1,y_2"


def read_rows(folder: Path, *lines: str, header: str = HEADER, **options: object) -> ImageTable:
    write_lines(folder / "mine.csv", [header, *lines])
    return csv.read(folder / "mine.csv", test_fraction=0, **options)


def test_a_list_has_several_boxes_of_an_image(tmp_path: Path) -> None:
    """The columns are in the order of other libraries, and a spreadsheet wrote 4 as 4.0."""
    table = read_rows(tmp_path, "a.jpg,cup,4.0,40,0,30", "a.jpg,pen,50,60,1,9", "a.jpg,desk,,,,", "b.jpg,pen,,,,")
    names = ("a.jpg#4,0,40,30", "a.jpg#50,1,60,9", "a.jpg", "b.jpg")
    assert table.paths.tolist() == [f"{tmp_path}/{name}" for name in names]
    assert [*find_faults(table)] == []
    assert table.content[:3].tolist() == [table.content[0]] * 3
    assert table.content[3] != table.content[0]
    write_lines(tmp_path / "mine.csv", ["path;label", "a.jpg#4,0,40,30;cup", "a.jpg;pen", "b.jpg;pen"])
    assert csv.read(tmp_path / "mine.csv", test_fraction=None).content.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("a.jpg,cup,4,4,0,30", r"line 3: the box '4,0,4,30', expected x_1,y_1,x_2,y_2 in whole pixels, 0 <= x_1 < x_2"),
        ("a.jpg,cup,-1,4,0,30", "line 3: the box '-1,0,4,30', expected"),
        ("a.jpg,cup,0,4.5,0,30", r"line 3: the box '0,0,4\.5,30', expected"),
        ("a.jpg,cup,0,4,,30", "line 3: the box '0,,4,30', expected"),
        ("a.jpg,cup,0,1e20,0,9", "line 3: the box '0,0,1e20,9', expected"),
        ("a.jpg,cup,0,inf,0,nan", "line 3: the box '0,0,inf,nan', expected"),
        ("z.jpg,cup,0,4,0,4", r"line 3: z\.jpg stands in line 2 already"),
    ],
)
def test_a_box_that_is_none_is_named_with_its_line(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(InputError, match=rf"mine\.csv, {fault}"):
        read_rows(tmp_path, "z.jpg,cup,0,4,0,4", line)


def test_columns_of_boxes_are_complete_and_may_have_other_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: no column 'y_2' among"):
        read_rows(tmp_path, "a.jpg,cup,0,4,0", header="path,label,x_1,x_2,y_1")
    with pytest.raises(InputError, match=r"line 1: unknown column 'x1', is it 'x_1'\?"):
        read_rows(tmp_path, "a.jpg,cup,0", header="path,label,x1")
    names = {"x_1": "left", "y_1": "top", "x_2": "right", "y_2": "bottom"}
    table = read_rows(tmp_path, "a.jpg,cup,1,2,3,4", header="path,label,left,top,right,bottom", columns=names)
    assert table.paths.tolist() == [f"{tmp_path}/a.jpg#1,2,3,4"]


def test_queries_of_roxford_are_cropped(tmp_path: Path) -> None:
    ROXFORD.build(tmp_path)
    table = roxford.read(tmp_path)
    queries = table.rows("query")
    assert [path.partition("#")[2] for path in table.paths[queries]] == ["2,1,9,7", "0,0,9,7", "0,0,9,7"] * 3
    assert not any("#" in path for path in table.paths[table.rows("gallery")])
    (tmp_path / LIST).write_bytes(
        pickle.dumps(TRUTH | {"gnd": [{**entry, "bbx": [3, 0, 2, 4]} for entry in TRUTH["gnd"]]})
    )
    with pytest.raises(InputError, match="gnd of all_souls_1: the box '3,0,2,4', expected"):
        roxford.read(tmp_path)


def test_images_of_inshop_may_be_cropped(tmp_path: Path) -> None:
    INSHOP.build(tmp_path)
    lines = [f"{image} 1 2 {i} 1 {i + 9:03} 20" for i, (image, _, _) in enumerate(rows())]
    boxes, header = tmp_path / "Anno/list_bbox_inshop.txt", "image_name clothes_type pose_type x_1 y_1 x_2 y_2"
    write_lines(boxes, [str(len(lines)), header, *lines])
    whole = inshop.read(tmp_path).paths.tolist()
    assert not any("#" in path for path in whole)
    assert inshop.read(tmp_path, crop=True).paths.tolist() == [
        f"{path}#{i},1,{i + 9},20" for i, path in enumerate(whole)
    ]
    (tmp_path / "img").rename(tmp_path / "img_highres")
    with pytest.raises(
        InputError, match=r"its boxes end at 28, so they are of img/ \(256 x 256\), not of .*img_highres"
    ):
        inshop.read(tmp_path, crop=True)
    write_lines(boxes, [str(len(lines) - 1), header, *lines[1:]])
    with pytest.raises(InputError, match=rf"list_bbox_inshop\.txt: no box of {rows()[0][0]}"):
        inshop.read(tmp_path, crop=True)
