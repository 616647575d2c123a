from pathlib import Path

import pytest
from trees.cub200 import IMAGES, NAMES, TREE
from trees.tree import edit

from dml.data.readers.cub200 import read
from dml.runtime.errors import InputError


def test_the_first_hundred_classes_are_for_training(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    assert table.paths.tolist() == [f"{tmp_path}/images/{path}" for _, path in IMAGES]
    assert table.labels.tolist() == [[number - 1] for number, _ in IMAGES]
    assert table.split.tolist() == ["train" if number <= 100 else "test" for number, _ in IMAGES]
    assert table.names == (tuple(NAMES),)


@pytest.mark.parametrize(
    ("name", "pattern", "new", "message"),
    [
        (
            "images.txt",
            "^7 ",
            "6 ",
            r"images\.txt, line 7: id 6 is there twice, for 004\.Bird_4/.*\.jpg and 005\.Bird_5/",
        ),
        (
            "images.txt",
            "^7 ",
            "900 ",
            r"300 images, 300 in image_class_labels\.txt; image 7 is in one of the two alone",
        ),
        ("images.txt", "^7 ", "7. ", r"images\.txt, line 7: id '7\.', expected a whole number"),
        ("classes.txt", "^5 .*\n", "", r"image 7 is 005\.Bird_5/.*, its class in .* is 5, None in classes\.txt"),
        ("images.txt", "^7 ", "0 ", r"images\.txt, line 7: id '0', expected a whole number from 1"),
        (
            "image_class_labels.txt",
            "^7 5$",
            "7 0",
            r"labels\.txt: class_id of image 7 '0', expected a .* from 1 to 200",
        ),
        ("image_class_labels.txt", "^7 5$", "7 300000000", r"class_id of image 7 '300000000', expected a .* to 200"),
        ("classes.txt", "^5 ", "300000000 ", r"classes\.txt, line 5: id '300000000', expected a .* from 1 to 200"),
    ],
)
@pytest.mark.data_sets
def test_lists_that_disagree(name: str, pattern: str, new: str, message: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit(name, pattern, new)(tmp_path)
    with pytest.raises(InputError, match=message):
        read(tmp_path)
