import zipfile
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from dml.data.images import read_image
from dml.data.readers.emoji import read
from dml.data.table import ImageTable
from dml.runtime.errors import InputError


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return read()


def classes(table: ImageTable, *splits: str) -> set[int]:
    return set(table.subset(*splits).labels[:, 0].tolist())


def test_counts(table: ImageTable) -> None:
    counts = table.counts()
    assert {split: (count["images"], count["emoji"]) for split, count in counts.items()} == {
        "train": (2419, 458),
        "val": (614, 115),
        "test": (3030, 573),
    }
    assert len(table) == 6063
    assert table.labels.max(axis=0).tolist() == [1145, 94, 7]


def test_names(table: ImageTable) -> None:
    emoji, subgroups, groups = table.names
    assert (len(emoji), len(subgroups), len(groups)) == (1146, 95, 8)
    names = "activities animals-nature food-drink objects people-body smileys-emotion symbols travel-places"
    assert sorted(groups) == names.split()
    assert all(isinstance(name, str) and name for level in table.names for name in level)
    for name, subgroup, group in [
        ("grinning face", "face-smiling", "smileys-emotion"),
        ("red apple", "food-fruit", "food-drink"),
    ]:
        (row, *_) = np.flatnonzero(table.labels[:, 0] == emoji.index(name))
        assert subgroups[table.labels[row, 1]] == subgroup
        assert groups[table.labels[row, 2]] == group


def test_the_code_point_in_the_path_is_the_class(table: ImageTable) -> None:
    row = next(i for i, path in enumerate(table.paths) if path.rpartition("/")[2].startswith("1f34e."))
    assert table.names[0][table.labels[row, 0]] == "red apple"
    assert len(set(table.paths)) == 6063


def test_the_split_is_this_one(table: ImageTable) -> None:
    """Results are compared across versions: another generator, or order, would make them something else."""
    sums = {
        split: crc32("\n".join(sorted(table.names[0][c] for c in classes(table, split))).encode())
        for split in ("train", "val", "test")
    }
    assert sums == {"train": 1438925112, "val": 3459545820, "test": 4163517126}


def test_another_root(table: ImageTable, small_emoji: Path) -> None:
    for root in (small_emoji, str(small_emoji)):
        small = read(root)
        inside = np.isin(table.labels[:, 1], [table.names[1].index(name) for name in small.names[1]])
        assert len(small) == inside.sum() > 0
        assert set(small.names[0]) == {table.names[0][c] for c in set(table.labels[inside, 0].tolist())}
        assert all(path.startswith(f"{small_emoji}/images/") for path in small.paths)
    assert read_image(str(small.paths[0])).shape == (3, 64, 64)


# roots that are none


def test_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"dataset\.root={tmp_path}/none\.zip: not an archive"):
        read(tmp_path / "none.zip")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"dataset\.root={tmp_path}: give the \.zip file"):
        read(tmp_path)
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(InputError, match=rf"dataset\.root={tmp_path}/folder\.zip: not an archive"):
        read(tmp_path / "folder.zip")


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("404")
    with pytest.raises(InputError, match=r"text\.zip: not an archive that scripts/build_emoji\.py writes"):
        read(tmp_path / "text.zip")


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("readme.txt", b"no table", r"dataset\.root=.*other\.zip: not an archive"),
        ("table.csv", b"path,emoji,name\n1.png,1f600,grinning face\n", r"dataset\.root=.*other\.zip: not an"),
        ("table.csv", b"emoji,subgroup,group\n1f600,face-smiling,smileys\n", r"dataset\.root=.*other\.zip: not an"),
        ("table.csv", b"path,emoji,name,subgroup,group\n1.png,1f600,\xff\xfe,a,b\n", r"dataset\.root=.*other\.zip"),
        ("table.csv", b"path,emoji,name,subgroup,group\n", "folds are 2 to 0"),
    ],
)
def test_an_archive_of_something_else(tmp_path: Path, member: str, content: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr(member, content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "other.zip")
