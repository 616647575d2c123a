from pathlib import Path

import pytest
from trees.inshop import HEADER, LIST, TREE, rows
from trees.tree import edit

from dml.data.readers.inshop import read
from dml.runtime.errors import InputError


def test_the_rows_are_those_of_the_list_in_their_order(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    assert table.paths.tolist() == [f"{tmp_path}/{image}" for image, _, _ in rows()]
    assert table.labels.tolist() == [[int(item.removeprefix("id_")) - 1] for _, item, _ in rows()]
    assert table.split.tolist() == [status for _, _, status in rows()]
    assert table.names == (tuple(f"id_{item:08d}" for item in range(1, 10)),)
    assert table.levels == ("item",)


@pytest.mark.parametrize("place", ["img", "img_highres", "Img/img", "Img/img_highres"])
@pytest.mark.parametrize("list_place", ["list_eval_partition.txt", LIST])
def test_where_the_files_may_lie(place: str, list_place: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / LIST).rename(tmp_path / list_place)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / "img").rename(tmp_path / place)
    table = read(tmp_path)
    assert table.paths.tolist() == [f"{tmp_path}/{place}/{image.removeprefix('img/')}" for image, _, _ in rows()]
    assert all(Path(path).is_file() for path in table.paths)


def test_small_images_go_before_large_ones(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "img_highres").mkdir()
    assert all(path.startswith(f"{tmp_path}/img/") for path in read(tmp_path).paths.tolist())


@pytest.mark.parametrize(
    ("pattern", "new", "message"),
    [
        (
            "(id_00000002/01.*) query$",
            r"\1 qery",
            "evaluation_status 'qery' of img/WOMEN/.*, expected train, query, gallery",
        ),
        (f"^{HEADER}$", "", rf"line 2: '', expected the header '{HEADER}'"),
        (f"^20\n{HEADER}$", HEADER, rf"line 2: 'img/.* train', expected the header '{HEADER}'"),
        ("^20$", "21", r"20 images in it, 21 by its first line"),
    ],
)
def test_a_list_that_is_none(pattern: str, new: str, message: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit(LIST, pattern, new)(tmp_path)
    with pytest.raises(InputError, match=rf"list_eval_partition\.txt[:,] {message}"):
        read(tmp_path)
