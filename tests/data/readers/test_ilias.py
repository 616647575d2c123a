from pathlib import Path

from trees.ilias import IMAGES, POSITIVES, QUERIES, TREE

from dml.data.readers.ilias import read


def test_rows_are_those_of_the_lists(tmp_path: Path) -> None:
    """The gallery holds no queries, and texts aren't images."""
    TREE.build(tmp_path)
    table = read(tmp_path)
    images = IMAGES[QUERIES] + IMAGES[POSITIVES]
    assert table.paths.tolist() == [f"{tmp_path}/ilias_core/{image}" for image in images]
    assert table.split.tolist() == ["query"] * 3 + ["gallery"] * 4
    assert [table.names[0][label] for label in table.labels[:, 0]] == [image.partition("/")[0] for image in images]
