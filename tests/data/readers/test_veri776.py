from pathlib import Path

from trees.veri776 import IMAGES, TREE

from dml.data.readers.veri776 import read


def test_rows_and_pairs(tmp_path: Path) -> None:
    """The pairs are those of jk_index.txt, whose numbers of the gallery's images begin with 1."""
    TREE.build(tmp_path)
    table = read(tmp_path)
    names = [f"image_{name}/{image}" for name in IMAGES for image in IMAGES[name]]
    assert table.paths.tolist() == [f"{tmp_path}/{name}" for name in names]
    assert table.split.tolist() == ["train"] * 3 + ["query"] * 2 + ["gallery"] * 5
    assert table.names == (("0001", "0002", "0004", "0005"),)
    junk = {3: [1, 2], 4: [5]}
    assert table.excluded.tolist() == [[query, 4 + number] for query, numbers in junk.items() for number in numbers]


def test_lists_of_nothing(tmp_path: Path) -> None:
    for name in IMAGES:
        (tmp_path / f"name_{name}.txt").write_text("")
    assert len(read(tmp_path)) == 0
