from pathlib import Path

import pytest
from trees.folder import IMAGES, TREE
from trees.tree import write_images

from dml.data.readers.folder import read
from dml.data.table import ImageTable
from dml.ops.errors import InputError

CLASSES = ["b", "a", "d", "c"]


def rows(table: ImageTable, root: Path) -> set[tuple[str, str, str]]:
    """(path below the root, name of the class, split) of each image."""
    return {
        (str(Path(path).relative_to(root)), table.names[0][label], split)
        for path, label, split in zip(
            table.paths.tolist(), table.labels[:, 0].tolist(), table.split.tolist(), strict=True
        )
    }


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    write_images(tmp_path, [f"{name}/{i}.png" for name in CLASSES for i in range(3)])
    table = read(tmp_path)
    assert table.levels == ("class",)
    assert table.names == (("a", "b", "c", "d"),)
    assert {(path, name) for path, name, _ in rows(table, tmp_path)} == {
        (f"{name}/{i}.png", name) for name in CLASSES for i in range(3)
    }
    tested = {name for _, name, split in rows(table, tmp_path) if split == "test"}
    assert len(tested) == 2
    assert tested.isdisjoint(name for _, name, split in rows(table, tmp_path) if split == "train")
    held_out = read(str(tmp_path), test_fraction=0.25, val_fraction=0.3, seed=3).counts()
    assert {split: counts["class"] for split, counts in held_out.items()} == {"train": 2, "val": 1, "test": 1}


def test_namesakes_in_two_super_classes(tmp_path: Path) -> None:
    write_images(tmp_path, [f"{kind}/{size}/1.jpg" for kind in ("shoes", "hats") for size in ("big", "small")])
    table = read(tmp_path)
    assert table.levels == ("class", "super_class")
    assert table.names == (("hats/big", "hats/small", "shoes/big", "shoes/small"), ("hats", "shoes"))
    assert table.labels.tolist() == [[0, 0], [1, 0], [2, 1], [3, 1]]


def test_splits_of_ones_own(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    assert rows(table, tmp_path) == {(path, "/".join(path.split("/")[1:3]), path.partition("/")[0]) for path in IMAGES}
    (tmp_path / "test").rename(tmp_path / "query")
    write_images(tmp_path, ["gallery/birds/owl/5.jpg", "gallery/cats/puma/5.jpg", "val/cats/lion/1.jpg"])
    counts = read(tmp_path, val_fraction=0.5).counts()
    assert {split: count["images"] for split, count in counts.items()} == {
        "train": 5,
        "val": 1,
        "query": 3,
        "gallery": 2,
    }


def test_a_class_may_be_called_as_a_split_is(tmp_path: Path) -> None:
    write_images(tmp_path, [f"{name}/1.jpg" for name in ("train", "bus", "car")])
    assert read(tmp_path).names == (("bus", "car", "train"),)


@pytest.mark.parametrize("name", ["1.JPG", "1.Jpeg", "a.b.png", "1.webp", "1.tif", "ä ö.bmp", "1 (2).gif"])
def test_images_by_their_suffix(name: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["a/1.jpg", f"b/{name}"])
    assert str(tmp_path / "b" / name) in read(tmp_path).paths.tolist()


@pytest.mark.parametrize(
    "name", ["a/._1.jpg", "a/.hidden.png", ".trash/x/1.jpg", "__MACOSX/a/1.jpg", "a/notes.txt", "readme.md"]
)
def test_what_is_passed_over(name: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["a/1.jpg", "b/1.jpg", name])
    assert read(tmp_path).paths.tolist() == [f"{tmp_path}/a/1.jpg", f"{tmp_path}/b/1.jpg"]


def test_classes_may_be_links(tmp_path: Path) -> None:
    write_images(tmp_path, ["mine/a/1.jpg", "elsewhere/1.jpg"])
    (tmp_path / "mine" / "b").symlink_to(tmp_path / "elsewhere")
    assert read(tmp_path / "mine").names == (("a", "b"),)
    (tmp_path / "mine" / "c").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match=r"mine/c/c/a: a folder too deep; give a folder of images of your own"):
        read(tmp_path / "mine")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["1.jpg", "a/1.jpg"], r"/1\.jpg: an image outside of a class's folder; give a folder of images"),
        (["a/1.jpg", "b/c/1.jpg"], r": a/1\.jpg is in a class, b/c/1\.jpg in a class of a super-class; either"),
        (["a/b/c/1.jpg"], "/a/b/c: a folder too deep"),
        (["a/1.jpg", "b/1.heic"], r"/b: no image in it \(by suffix: \.bmp .*\); remove the folder"),
        (["notes.txt"], "no image in it"),
        (["train/a/1.jpg", "test/b/1.jpg", "c/d/1.jpg"], ": c/ stands beside test/ and train/; beside a split there"),
        (["train/a/1.jpg", "val/b/1.jpg"], "has the splits train, val; train and test are needed"),
        (["train/a/1.jpg", "test/1.jpg"], r"test/1\.jpg: an image outside of a class's folder"),
        (["a/1.jpg"], "1 training class, two are needed to draw test_fraction"),
    ],
)
def test_other_trees(paths: list[str], message: str, tmp_path: Path) -> None:
    write_images(tmp_path, paths)
    with pytest.raises(InputError, match=message):
        read(tmp_path)
