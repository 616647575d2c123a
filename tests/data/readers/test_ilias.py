from pathlib import Path

import pytest
from trees.ilias import IMAGES, POSITIVES, QUERIES, TREE

from dml.data.readers.ilias import read
from dml.runtime.errors import InputError


def test_rows_are_those_of_the_lists(tmp_path: Path) -> None:
    """The gallery holds no queries, and texts aren't images."""
    TREE.build(tmp_path)
    table = read(tmp_path)
    images = IMAGES[QUERIES] + IMAGES[POSITIVES]
    assert [path.partition("#")[0] for path in table.paths] == [f"{tmp_path}/ilias_core/{image}" for image in images]
    assert table.split.tolist() == ["query"] * 3 + ["gallery"] * 4
    assert [table.names[0][label] for label in table.labels[:, 0]] == [image.partition("/")[0] for image in images]


@pytest.mark.parametrize(
    ("lines", "box"), [("1 1 -2 5\n0 0 4 4", "1.0,1.0,-1.0,6.0"), ("1 1 1e300 5", r"1.0,1.0,1e\+300,6.0")]
)
def test_each_box_of_an_image_is_one(lines: str, box: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "ilias_core/mug_001/query/Q001_00_bbox.txt").write_text(lines)
    with pytest.raises(InputError, match=f"Q001_00_bbox.txt: the box '{box}', expected x_1,y_1,x_2,y_2"):
        read(tmp_path)
