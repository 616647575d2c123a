import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from trees.folder import IMAGES, TREE
from trees.tree import write_images

from dml.data.image_listing import list_images
from dml.data.images import read_image
from dml.data.readers.folder import read
from dml.data.table import ImageTable, load
from dml.inference.image_inputs import list_source
from dml.runtime.errors import InputError

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
    write_images(tmp_path, [f"{name}/{i}.png" for name in "ef" for i in range(3)])
    held_out = read(str(tmp_path), test_fraction=0.25, val_fraction=0.3, seed=3).counts()
    assert {split: counts["class"] for split, counts in held_out.items()} == {"train": 2, "val": 2, "test": 2}


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


@pytest.mark.parametrize(
    "folders",
    [
        {"train": "train", "valid": "val", "testing": "test"},
        {"Train": "train", "Test": "test"},
        {"train_images": "train", "test_images": "test"},
        {"trainset": "train", "test1": "test"},
        {"train2017": "train", "val2017": "val"},
        {"cars_train": "train", "cars_test": "test"},
        {"bounding_box_train": "train", "bounding_box_test": "gallery", "query": "query"},  # Market-1501
        {"image_train": "train", "image_test": "gallery", "image_query": "query"},  # VeRi
        {"training": "train", "probe": "query", "Gallery": "gallery"},
        {"train": "train", "dev": "val", "eval": "test"},
        {"train": "train", "eval": "val", "hold-out": "test"},
    ],
)
@pytest.mark.parametrize("layout", ["{split}/{name}", "{split}/birds/{name}", "{name}/{split}", "birds/{split}/{name}"])
def test_folders_that_are_named_like_splits(folders: dict[str, str], layout: str, tmp_path: Path) -> None:
    paths = {
        f"{layout.format(split=folder, name=f'{folder[0]}{name}')}/1.jpg": split
        for folder, split in folders.items()
        for name in "abcdef"
    }
    write_images(tmp_path, paths)
    table = read(tmp_path)
    assert {path: split for path, _, split in rows(table, tmp_path)} == paths
    assert all("/" not in name or name.startswith("birds/") for name in table.names[0])


def test_the_same_classes_in_training_and_test(tmp_path: Path) -> None:
    """A class is one class on both sides, which `dml.data.table.load` then refuses."""
    write_images(tmp_path, [f"{name}/{split}/1.jpg" for name in ("bus", "car") for split in ("train", "test")])
    table = read(tmp_path)
    assert table.names == (("bus", "car"),)
    with pytest.raises(InputError, match=r"^folder: 2 classes are in training and in test, .*dataset\.disjoint=false"):
        load(lambda _: table, None, name="folder")


@pytest.mark.parametrize("test_fraction", [0, 0.5])
def test_training_and_validation_alone(test_fraction: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The layout of ImageNet in torchvision."""
    write_images(tmp_path, [f"{split}/{name}/1.jpg" for split in ("train", "val") for name in "ab"])
    table = read(tmp_path, test_fraction=test_fraction, val_fraction=0.2)
    assert {split: count["class"] for split, count in table.counts().items()} == {"train": 2, "val": 2}
    assert caplog.messages == [f"{tmp_path}: has no test split, so val is both validation and test"]


@pytest.mark.parametrize(("test_fraction", "splits"), [(0, {"train", "val"}), (0.5, {"train", "val", "test"})])
def test_training_alone(
    test_fraction: float, splits: set[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path, [f"{folder}{name}/1.jpg" for folder in ("one/train/", "two/") for name in "abcdefgh"])
    table = read(tmp_path / "one", test_fraction=test_fraction, val_fraction=0.2)
    assert {*table.split.tolist()} == splits
    plain = read(tmp_path / "two", test_fraction=test_fraction, val_fraction=0.2)
    assert (table.names, table.split.tolist()) == (plain.names, plain.split.tolist())
    assert caplog.messages == [f"{tmp_path}/one: has the split train alone, from which the others are drawn"]


@pytest.mark.parametrize(
    "classes",
    [
        ("train", "bus", "car"),
        ("train", "bus", "test tube"),
        ("train", "bus", "probe"),
        ("train", "valley", "contest"),
        ("train station", "bus station", "testudo"),
        ("vehicles/train", "vehicles/bus", "laboratory/test tube"),
    ],
)
def test_classes_with_the_word_of_a_split(
    classes: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path, [f"{name}/1.jpg" for name in classes])
    assert {*read(tmp_path).names[0]} == {*classes}
    assert not caplog.messages


def test_images_by_their_suffix(tmp_path: Path) -> None:
    names = {
        *("1.JPG", "1.Jpeg", "a.b.png", "1.webp", "1.tif", "ä ö.bmp", "1 (2).gif"),
        *("1.jpe", "1.JFIF", "1.mpo", "1.dib", "1.pbm", "1.pnm", "1.apng"),
    }
    write_images(tmp_path, ["a/1.jpg", *(f"b/{name}" for name in names)])
    assert {Path(path).name for path in read(tmp_path).paths.tolist()} == {"1.jpg", *names}


PASSED_OVER = [
    *("a/._1.jpg", "a/.hidden.png", ".trash/x/1.jpg", "__MACOSX/a/1.jpg", "a/notes.txt", "readme.md"),
    *("LICENSE", "a/Thumbs.db", "a/.DS_Store", "a/1.json", "a/1.MOV", "a/Icon\r", "a/desktop.ini"),
    *("@eaDir/a/1.jpg", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "a/SYNOFILE_THUMB_M_1.jpg", "#recycle/c/1.jpg"),
    *("a/.@__thumb/1.jpg", "@Recycle/1.jpg", "#snapshot/c/1.jpg", "a/1.jpg@SynoEAStream", "a/@__thumb/1.jpg"),
    *("$RECYCLE.BIN/S-1-5/$R1.jpg", "System Volume Information/1.jpg", "RECYCLER/1.jpg", "a/ehthumbs_vista.db"),
    *("lost+found/1.jpg", ".Trash-1000/files/1.jpg", ".thumbnails/normal/1.png", ".AppleDouble/1.jpg"),
    *("a/.ipynb_checkpoints/1-checkpoint.jpg", ".git/x/1.jpg", ".dml/folder/sheet.png", ".picasaoriginals/1.jpg"),
    *("Mine.lrdata/1/2.jpg", "a/.nomedia", "_vti_cnf/1.jpg", "Network Trash Folder/1.jpg", "Temporary Items/1.jpg"),
    *("a/CaptureOne/Cache/1.jpg", "a/[Originals]/1.jpg", "a/Thumbs.db:encryptable", "a/__pycache__/1.png"),
]


def test_what_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, ["a/1.jpg", "b/1.jpg", *PASSED_OVER])
    assert read(tmp_path).paths.tolist() == [f"{tmp_path}/a/1.jpg", f"{tmp_path}/b/1.jpg"]
    assert list_images(tmp_path) == [f"{tmp_path}/a/1.jpg", f"{tmp_path}/b/1.jpg"]
    assert not caplog.messages


def test_classes_with_names_like_those_of_the_system(tmp_path: Path) -> None:
    names = ["recycled", "thumbs", "@robin", "#1", "desktop", "trash", "icon", "$5", "cache", "git"]
    paths = sorted(f"{tmp_path}/{name}/1.jpg" for name in names)
    write_images(tmp_path, paths)
    assert sorted(read(tmp_path).paths.tolist()) == sorted(list_images(tmp_path)) == paths


def test_classes_may_be_links(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, ["mine/a/1.jpg", "elsewhere/1.jpg"])
    (tmp_path / "mine" / "b").symlink_to(tmp_path / "elsewhere")
    assert read(tmp_path / "mine").names == (("a", "b"),)
    assert not caplog.messages
    for name, target in (("c", "mine"), ("A", "mine/a"), ("d", "elsewhere")):
        (tmp_path / "mine" / name).symlink_to(tmp_path / target)
    assert read(tmp_path / "mine").names == (("a", "b"),)
    (message,) = caplog.messages
    assert message == f"left out: {tmp_path}/mine: 3 links to folders that are read anyway, such as {tmp_path}/mine/A"


def test_splits_of_links_to_folders_beside_them_are_not_passed_over(tmp_path: Path) -> None:
    write_images(tmp_path, [f"all/{name}/1.jpg" for name in "abcd"])
    for link in ("train/a", "train/b", "test/c", "test/d"):
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(tmp_path / "all" / link[-1])
    with pytest.raises(InputError, match=r": all/ stands beside test/ and train/; .*; move it elsewhere, or list "):
        read(tmp_path)


@pytest.mark.parametrize("link", ["train/c", "val", "train/a/b", "train/002.Sparrow"])
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, link: str) -> None:
    """Left out, a disk that isn't mounted would take a class or a split away."""
    write_images(tmp_path, [f"{split}/{name}/1.jpg" for split in ("train", "test") for name in "ab"])
    (tmp_path / link).symlink_to("/not/mounted/c")
    line = rf"{tmp_path}/{link}: a link to /not/mounted/c, which isn't there; mount the disk that it is on, or remove"
    with pytest.raises(InputError, match=line):
        read(tmp_path)


@pytest.mark.parametrize("name", ["train/a/2.jpg", "train/a/.lock"])
def test_a_link_to_a_missing_file_is_as_a_missing_file(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, [f"{split}/{name}/1.jpg" for split in ("train", "test") for name in "ab"])
    (tmp_path / name).symlink_to("/not/mounted/file")
    assert len(read(tmp_path, test_fraction=0)) == 4 + name.endswith(".jpg")


def test_a_listing_warns_of_links_that_lead_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, ["mine/a/1.jpg"])
    (tmp_path / "mine" / "b").symlink_to("/not/mounted/b")
    assert list_images(tmp_path / "mine") == [f"{tmp_path}/mine/a/1.jpg"]
    links = f"1 link that leads nowhere, such as {tmp_path}/mine/b: a link to /not/mounted/b, which isn't there"
    assert caplog.messages == [f"left out: {tmp_path}/mine: {links}"]
    (tmp_path / "mine" / "a" / "1.jpg").unlink()
    with pytest.raises(InputError, match=f"mine: no image in it that can be read; it holds {links}$"):
        list_images(tmp_path / "mine")


def test_a_listing_follows_links_and_ends_where_they_lead_back(tmp_path: Path) -> None:
    write_images(tmp_path, ["mine/b/1.jpg", "elsewhere/2.jpg"])
    (tmp_path / "mine" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "mine" / "b" / "top").symlink_to(tmp_path / "mine")
    (tmp_path / "elsewhere" / "b").symlink_to(tmp_path / "mine" / "b")
    (tmp_path / "mine" / "gone").symlink_to(tmp_path / "gone")
    assert list_images(tmp_path / "mine") == [f"{tmp_path}/mine/a/2.jpg", f"{tmp_path}/mine/b/1.jpg"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["1.jpg", "a/1.jpg"], r"/1\.jpg: an image outside of a class's folder; give the folder of your"),
        (
            ["a/1.jpg", "b/c/1.jpg"],
            r": a/1\.jpg is in a class, b/c/1\.jpg in a class of a super-class; give the folder",
        ),
        (["a/b/c/1.jpg"], "/a/b/c: a folder too deep"),
        (["a/1.jpg", "b/notes.txt"], r"/b: no image in it \(by suffix: \.apng .*\); remove the folder"),
        (
            ["a/1.jpg", "b/1.heic", "b/2.HEIC"],
            r"/b: no image that can be read, but 2 files of kinds that dml doesn't read \(2 \.heic\), such as "
            r".*/1\.heic; pip install 'dml-retrieval\[heif\]' reads",
        ),
        (["train/a/1.jpg", "test/b/1.jpg", "c/d/1.jpg"], ": c/ stands beside test/ and train/; beside a split there"),
        (["a/train/1.jpg", "a/test/1.jpg", "b/other/1.jpg"], ": b/other/ stands beside test/ and train/; "),
        (["val/a/1.jpg", "test/b/1.jpg"], "has the splits test, val; train and test are needed"),
        (["train/a/1.jpg", "test/1.jpg"], r"test/1\.jpg: an image outside of a class's folder"),
        (["a/1.jpg"], "1 class, 2 are needed to draw whole classes"),
    ],
)
def test_other_trees(paths: list[str], message: str, tmp_path: Path) -> None:
    write_images(tmp_path, paths)
    with pytest.raises(InputError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mine.csv", "dataset=csv reads a list of images$"),
        ("1.jpg", "give the folder of your own images, which"),
        ("mine.ZIP", r"unpack it, or dataset=csv reads a list of paths such as photos\.zip/robin/1\.jpg; "),
        ("mine.tar.gz", "give the folder of your own images, which"),
    ],
)
def test_a_file_in_place_of_a_folder(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"dataset\.root=.*{name}: a file, not a folder; {remedy}"):
        read(tmp_path / name)


def test_images_of_other_kinds_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, ["a/1.jpg", "b/1.jpg", "b/2.svg", "a/2.nef", "a/3.nef"])
    assert len(read(tmp_path)) == 2
    assert caplog.messages == [
        f"left out: {tmp_path}: 3 files of kinds that dml doesn't read (2 .nef, 1 .svg), such as {tmp_path}/a/2.nef; "
        "convert images among them to .jpg or .png"
    ]


@pytest.mark.parametrize("list_files", [read, list_images])
def test_files_that_may_be_images_are_counted(
    list_files: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the endings of browsers and of programs for photographs."""
    write_images(tmp_path, ["a/1.jpg", "b/1.jpg", "b/2", "b/3.jpg_large", "b/4", "b/5.svg", "b/6.txt"])
    list_files(tmp_path)
    assert caplog.messages == [
        f"left out: {tmp_path}: 4 files of kinds that dml doesn't read (2 without an ending, 1 .jpg_large, 1 .svg), "
        f"such as {tmp_path}/b/2; convert images among them to .jpg or .png"
    ]


def test_a_root_one_level_too_high_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, ["mine/a/1.jpg", "mine/b/1.jpg"])
    assert read(tmp_path).levels == ("class", "super_class")
    assert caplog.messages == [
        f"dataset.root={tmp_path}: all classes are in one super-class, mine; without it: dataset.root={tmp_path}/mine"
    ]


def test_the_images_of_an_archive_are_listed(tmp_path: Path) -> None:
    """Without folders, system files and other files; and the paths are read."""
    for name in ("b.jpg", "c/a.png", "c/._a.png", "c/a.json"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "mine" / name, "PNG")
    archive = Path(shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "mine"))
    listed = list_images(archive)
    assert listed == [f"{archive}/b.jpg", f"{archive}/c/a.png"]
    assert list_source(archive) == (listed, ["", "c"])
    assert read_image(listed[1]).shape == (3, 6, 8)
    assert not {*listed} & {*list_images(tmp_path)}  # in a folder, an archive isn't opened
    archive.write_bytes(archive.read_bytes()[:40])
    with pytest.raises(InputError, match=rf"^{archive}: cannot be listed \(.+\); unpack it$"):
        list_images(archive)
