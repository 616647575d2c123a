"""Tar files in the layout of WebDataset: what is read of them, in which order, and by which processes."""

import gzip
import io
import json
import re
import tarfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from trees.shards import IMAGES, TREE, pack
from trees.tree import encoded

from dml.data.dataset import ImageDataset
from dml.data.image_files.contents import MISSING, index_tar, read_content, read_member, read_stamps, split_member
from dml.data.image_files.images import UnreadableImageError, read_image
from dml.data.prepared.verification import CheckedImage
from dml.data.readability import find_missing
from dml.data.readers.tar_shards import read
from dml.data.table import RESERVED_LEVELS, ImageTable
from dml.data.transforms import Pipeline
from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError

IMAGE = encoded("RGB")


def rows(table: ImageTable, root: Path) -> set[tuple[str, str, str]]:
    """(path below the root, name of the class, split) of each image."""
    return {
        (path.removeprefix(f"{root}/"), table.names[0][label], split)
        for path, label, split in zip(
            table.paths.tolist(), table.labels[:, 0].tolist(), table.split.tolist(), strict=True
        )
    }


def test_shards_with_splits(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    assert rows(read(tmp_path), tmp_path) == {
        (f"{shard}/{name}.JPG", label, shard.partition("-")[0])
        for shard, classes in IMAGES.items()
        for name, label in classes.items()
    }


def test_folders_are_splits_and_words_of_others_too(tmp_path: Path) -> None:
    for place, label in (("training/0", "a"), ("validation/x/0", "b"), ("query/0", "c"), ("gallery-big/0", "c")):
        path = tmp_path / f"{place}.tar"
        path.parent.mkdir(parents=True)
        pack(path, {"1.png": IMAGE, "1.cls": label.encode()})
    assert {split for *_, split in rows(read(tmp_path), tmp_path)} == {"train", "val", "query", "gallery"}


def pack_classes(folder: Path, *names: str) -> None:
    """Write a tar file of each name with one image of a class of its own."""
    folder.mkdir(exist_ok=True, parents=True)
    for name in names:
        pack(folder / name, {"1.png": IMAGE, "1.cls": name.encode()})


@pytest.mark.parametrize("name", ["{}set-000", "{}_images_0", "{}1", "{}Data"])
def test_a_split_is_what_a_name_begins_with(name: str, tmp_path: Path) -> None:
    splits = ("train", "query", "gallery")  # none is drawn
    pack_classes(tmp_path, *(f"{name.format(split)}.tar" for split in splits))
    found = {(path, split) for path, _, split in rows(read(tmp_path), tmp_path)}
    assert found == {(f"{name.format(split)}.tar/1.png", split) for split in splits}


def test_splits_within_the_names_are_not_passed_over(tmp_path: Path) -> None:
    """Classes drawn at random would mix the training and the test that the names tell."""
    pack_classes(
        tmp_path / "mine", *(f"birds-{word}-{i}.tar" for word in ("Train", "testset", "dev") for i in range(2))
    )
    found = {(path[6:9], split) for path, _, split in rows(read(tmp_path / "mine"), tmp_path / "mine")}
    assert found == {("Tra", "train"), ("tes", "test"), ("dev", "val")}
    pack_classes(tmp_path / "others", "valley-0.tar", "contest-0.tar", "b.tar")
    assert read(tmp_path / "others").counts().keys() == {"train", "test"}
    pack_classes(tmp_path / "others", "a-test.tar")
    with pytest.raises(InputError, match=r"/b\.tar: its path names no split, or two of them, while others are named; "):
        read(tmp_path / "others")


def test_folders_within_a_shard_say_the_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = {f"{folder}/{i}.{end}": IMAGE for folder in ("train", "test") for i in range(2) for end in ("png", "cls")}
    members = {name: name.encode() if name.endswith("cls") else content for name, content in members.items()}
    pack(tmp_path / "0.tar", members)
    for root in (tmp_path, tmp_path / "0.tar"):
        assert {(path.split("/")[-2], split) for path, _, split in rows(read(root), tmp_path)} == {
            ("train", "train"),
            ("test", "test"),
        }
    assert caplog.messages[0] == f"{tmp_path}: the splits are those that folders in the paths are named like"


def test_a_split_in_a_json_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = {"1.png": IMAGE, "1.json": b'{"kind": "a", "size": 3, "split": "train"}'}
    members |= {"2.png": IMAGE, "2.json": b'{"kind": "b", "size": 4, "split": "test"}'}
    pack(tmp_path / "0.tar", members)
    read(tmp_path, labels=["json.kind", "json.size"])
    (message,) = caplog.messages
    assert f"the splits of 2 images in JSON files, such as that of {tmp_path}/0.tar/1.png; only names say a" in message
    (tmp_path / "0.tar").rename(tmp_path / "train-0.tar")
    read(tmp_path, labels="json.kind", test_fraction=0)
    assert len(caplog.messages) == 2
    assert "has the split train alone" in caplog.messages[1]


def test_what_systems_put_into_shards_is_passed_over(tmp_path: Path) -> None:
    others = (
        "@eaDir/1.png/SYNOPHOTO_THUMB_M.png",
        ".thumbnails/1.png",
        "__MACOSX/a/2.png",
        "a/._1.png",
        "lost+found/3.png",
    )
    pack(tmp_path / "0.tar", {"a/1.png": IMAGE, "a/1.cls": b"a"} | dict.fromkeys(others, IMAGE))
    for folder in ("#recycle", "@eaDir", ".Trash-1000/files"):
        pack_classes(tmp_path / folder, "train-0.tar")
    assert read(tmp_path, test_fraction=0).paths.tolist() == [f"{tmp_path}/0.tar/a/1.png"]


def test_a_class_composed_and_decomposed_is_one(tmp_path: Path) -> None:
    classes = {f"{i}.cls": name.encode() for i, name in enumerate(("Zoe\u0308", "Zo\u00eb"))}
    pack(tmp_path / "0.tar", classes | {f"{i}.png": IMAGE for i in range(2)})
    assert read(tmp_path, test_fraction=0).names == (("Zo\u00eb",),)


def test_a_single_shard_has_its_classes_drawn(tmp_path: Path) -> None:
    members = {f"{i}.{ending}": content for i in range(12) for ending, content in (("jpg", IMAGE), ("cls", b"%d" % i))}
    pack(tmp_path / "train.tar", members)
    table = read(tmp_path / "train.tar", labels="cls", val_fraction=0.3)
    assert {split: counts["images"] for split, counts in table.counts().items()}.keys() == {"train", "val", "test"}
    assert set(table.names[0]) == {str(i) for i in range(12)}


def test_levels_are_fields_of_json(tmp_path: Path) -> None:
    content = {"species": "lynx", "family": 7}
    pack(tmp_path / "a.tar", {"x/1.v2.json": b"no", "x/1.jpg": IMAGE, "x/1.json": json.dumps(content).encode()})
    pack(tmp_path / "b.tar", {"1.jpg": IMAGE, "1.json": b'{"species": "wren", "family": 8}'})
    table = read(tmp_path, labels=["json.species", "json.family"], test_fraction=0)
    assert table.levels == ("species", "family")
    assert table.names == (("lynx", "wren"), ("7", "8"))
    assert table.labels.tolist() == [[0, 0], [1, 1]]


def test_levels_have_names_of_their_own(tmp_path: Path) -> None:
    content = {"class": "cats", "path": "a", "class_name": "b", "genus_name": "c", "genus": "d", "images": "e"}
    pack(tmp_path / "a.tar", {"1.jpg": IMAGE, "1.cls": b"lynx", "1.json": json.dumps(content).encode()})
    table = read(tmp_path, labels=["cls", *(f"json.{name}" for name in content)], test_fraction=0)
    assert table.levels == (
        *("class", "json_class", "json_path", "json_class_name", "genus_name", "json_genus", "json_images"),
    )
    columns = {field.name for field in fields(CheckedImage)}
    assert columns < RESERVED_LEVELS


@pytest.mark.parametrize(
    ("members", "labels", "message"),
    [
        ({"1.jpg": IMAGE, "1.JPG": IMAGE, "1.cls": b"a"}, ["cls"], r"1\.jpg and 1\.JPG differ in capitals alone"),
        ({"1.jpg": IMAGE, "1.json": b"{}"}, ["json.kind"], r"0\.tar/1\.jpg: its \.json gives no class \(no field kind"),
        ({"1.jpg": IMAGE, "1.json": b"[1]"}, ["json.kind"], r"its \.json gives no class \(TypeError"),
        ({"1.jpg": IMAGE, "1.json": b"{"}, ["json.kind"], r"its \.json gives no class \(JSONDecodeError"),
        ({"1.jpg": IMAGE, "1.json": b'{"kind": 1.5}'}, ["json.kind"], "its class is 1.5, expected a name or a whole"),
        ({"1.jpg": IMAGE, "1.json": b'{"kind": true}'}, ["json.kind"], "its class is True, expected a name"),
        ({"1.jpg": IMAGE, "1.cls": b" \n"}, ["cls"], "its class is '', expected a name"),
        ({"1.jpg": IMAGE, "1.txt": b"a"}, ["cls"], r"no \.cls beside it, but txt; dataset\.reader\.labels says where"),
        ({"1.jpg": IMAGE, "1.png": IMAGE, "1.cls": b"a"}, ["cls"], r"1\.jpg and 1\.png are both the image of one name"),
        ({"1.cls": b"a"}, ["cls"], "no image in its tar files; give the path of shards of your own, which holds"),
        ({"1.jpg": IMAGE, "1.cls": b"a"}, [], r"dataset\.reader\.labels: empty; give where the classes stand"),
        ({"1.jpg": IMAGE, "1.cls": b"a"}, ["cls", "cls"], r"labels=\['cls', 'cls'\]: one is there twice; give where"),
    ],
)
def test_what_has_no_class_is_one_line(
    members: dict[str, bytes], labels: list[str], message: str, tmp_path: Path
) -> None:
    pack(tmp_path / "0.tar", members)
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, labels=labels)
    assert "\n" not in str(error.value)


def test_shards_without_a_split_beside_others_are_refused(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "train-1.tar").rename(tmp_path / "more.tar")
    with pytest.raises(InputError, match=r"/more\.tar: its path names no split, or two of them, while others are"):
        read(tmp_path)


def test_names_with_a_dot_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dotted = {"v.2020.jpg": IMAGE, "v.2021.jpg": IMAGE, "v.2020.cls": b"a"}
    pack(tmp_path / "a.tar", dotted | {"1.jpg": IMAGE, "1.seg.png": IMAGE, "1.cls": b"a"})
    assert len(read(tmp_path, test_fraction=0)) == 1
    (line,) = caplog.messages
    assert f"2 images with a dot in the name, such as {tmp_path}/a.tar/v.2020.jpg; a name ends at the first dot" in line


def test_images_of_other_kinds_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TREE.build(tmp_path)
    pack(tmp_path / "test-1.tar", {"1.svg": b"", "1.cls": b"owl"})
    assert len(read(tmp_path)) == 8
    assert "left out" in caplog.text
    assert "1 image of a kind that dml doesn't read (1 .svg)" in caplog.text


def pack_links(path: Path, *entries: tuple[str, bytes | str, bytes]) -> None:
    """Write a tar file of (name, content of a file or target of a link, type of the member)."""
    with tarfile.open(path, "w") as archive:
        for name, content, kind in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.linkname = content
                archive.addfile(entry)


def test_a_hard_link_is_the_file_that_it_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack_links(
        tmp_path / "0.tar",
        ("./a/1.png", IMAGE, tarfile.REGTYPE),
        ("./a/1.cls", b"robin", tarfile.REGTYPE),
        ("./b/1.png", "./a/1.png", tarfile.LNKTYPE),
        ("./b/1.cls", "a/1.cls", tarfile.LNKTYPE),
        ("./c/1.png", "./b/1.png", tarfile.LNKTYPE),  # a link to a link
        ("./c/1.cls", b"wren", tarfile.REGTYPE),
    )
    table = read(tmp_path, test_fraction=0)
    assert rows(table, tmp_path) == {
        ("0.tar/a/1.png", "robin", "train"),
        ("0.tar/b/1.png", "robin", "train"),
        ("0.tar/c/1.png", "wren", "train"),
    }
    assert {read_content(path) for path in table.paths.tolist()} == {IMAGE}
    assert find_missing(table.paths.tolist()) == []
    assert not caplog.records


def test_links_that_are_not_read_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TREE.build(tmp_path)
    for number in (1, 2):
        pack_links(
            tmp_path / f"test-{number}.tar",
            ("1.jpg", "2.jpg", tarfile.SYMTYPE),
            ("2.jpg", "none.jpg", tarfile.LNKTYPE),
            ("._3.jpg", "2.jpg", tarfile.SYMTYPE),
        )
    assert len(read(tmp_path)) == 8
    first, second = caplog.messages
    assert first.startswith(
        f"left out: {tmp_path}: 2 symbolic links, such as {tmp_path}/test-1.tar/1.jpg, which dml doesn't read; "
    )
    assert f"2 broken hard links, such as {tmp_path}/test-1.tar/2.jpg, which dml doesn't read; " in second


def test_label_files_without_an_image_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TREE.build(tmp_path)
    pack(tmp_path / "test-1.tar", {"1.cls": b"owl", "2.seg.png": IMAGE, "2.cls": b"owl", "3.txt": b"a remark"})
    assert len(read(tmp_path)) == 8
    dotted, line = caplog.messages
    assert "1 image with a dot in the name" in dotted
    assert f"2 label files without an image of the same name, such as {tmp_path}/test-1.tar/1.cls; " in line


@pytest.mark.parametrize("name", ["test-1.TAR", "test-1.tar.gz", "test-1.tgz"])
def test_tar_files_of_other_endings_are_counted(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / name).touch()
    count = f"1 tar file that dml doesn't read, such as {tmp_path}/others/{name}"
    with pytest.raises(InputError, match=rf"no \.tar file in it, but {re.escape(count)}; give the path of shards"):
        read(tmp_path)
    TREE.build(tmp_path)
    assert len(read(tmp_path)) == 8
    (line,) = caplog.messages
    assert line == f"left out: {tmp_path}: {count}; unpack compressed ones, and end their names in .tar"


@pytest.mark.parametrize(
    ("place", "contents"),
    [
        ("cls", [b"lynx", b"\xef\xbb\xbflynx\r\n", b" lynx\n"]),
        ("json.kind", [b'{"kind": "lynx"}', b'\xef\xbb\xbf{"kind": "lynx"}', b'{"kind": " lynx\\n"}']),
    ],
)
def test_marks_and_blanks_around_a_class_are_not_of_its_name(place: str, contents: list[bytes], tmp_path: Path) -> None:
    ending = place.partition(".")[0]
    images = {f"{number}.png": IMAGE for number in range(len(contents))}
    label_files = {f"{number}.{ending}": content for number, content in enumerate(contents)}
    pack(tmp_path / "a.tar", images | label_files)
    assert read(tmp_path, labels=place, test_fraction=0).names == (("lynx",),)


@pytest.mark.parametrize(("labels", "text"), [([1], r"\[1\]"), (5, "5"), ([""], r"\[''\]"), (["cls", None], "")])
def test_labels_that_are_not_names_are_one_line(labels: Any, text: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    with pytest.raises(InputError, match=rf"dataset\.reader\.labels={text}.*: not names of .* such as \[cls\] or"):
        read(tmp_path, labels=labels)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "images.bin", {"1.jpg": IMAGE, "1.cls": b"a"})
    with pytest.raises(InputError, match=r"images\.bin: no \.tar file; give the path of shards of your own"):
        read(tmp_path / "images.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no \.tar file in it; give the path of"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match=r"dataset\.root: no value; give dataset\.root=FOLDER"):
        read(None)


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "test-0.tar").write_bytes(gzip.compress((tmp_path / "test-0.tar").read_bytes()))
    with pytest.raises(InputError, match=r"test-0\.tar: no tar file without compression that can be read"):
        read(tmp_path)


def test_members_are_read_as_files_are(tmp_path: Path) -> None:
    path = str(tmp_path / "set.tar")
    pack(tmp_path / "set.tar", {"a/1.jpg": IMAGE, "2.jpg": b"none"})
    assert split_member(f"{path}/a/1.jpg") == (path, "a/1.jpg")
    assert read_content(f"{path}/a/1.jpg") == IMAGE
    assert read_image(f"{path}/a/1.jpg").shape == (3, 8, 12)
    stamp, of_archive, of_nothing = read_stamps([f"{path}/a/1.jpg", path, f"{path}x/1.jpg"]).tolist()
    assert stamp == of_archive != of_nothing == [*MISSING]
    with pytest.raises(FileNotFoundError):
        read_content(f"{path}/3.jpg")
    with pytest.raises(RefusedFileError, match="bytes, at most 10 are read"):
        read_content(f"{path}/a/1.jpg", max_bytes=10)
    with pytest.raises(UnreadableImageError, match=r"set\.tar/2\.jpg: cannot be decoded"):
        read_image(f"{path}/2.jpg")
    wanted = [f"{path}/a/1.jpg", f"{path}/a/2.jpg", f"{path}/2.jpg", f"{path}/3.jpg", f"{tmp_path}/none.tar/1.jpg"]
    assert find_missing(wanted) == [f"{path}/a/2.jpg", f"{path}/3.jpg", f"{tmp_path}/none.tar/1.jpg"]


def test_a_shard_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    pack(path, {"1.jpg": b"old"})
    assert read_content(f"{path}/1.jpg") == b"old"
    pack(tmp_path / "new.tar", {"0.jpg": b"x" * 2000, "1.jpg": b"new"})
    (tmp_path / "new.tar").replace(path)
    assert read_content(f"{path}/1.jpg") == b"new"


def test_a_shard_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    pack(path, {"1.jpg": IMAGE, "2.jpg": IMAGE * 20})
    complete = path.read_bytes()
    path.write_bytes(complete[: len(IMAGE) + 2000])
    with pytest.raises(tarfile.TarError):
        index_tar(str(path))
    pack(path, {"1.jpg": IMAGE})
    assert read_member(str(path), "1.jpg", 10_000, "") == IMAGE


@pytest.mark.parametrize("damage", ["a bit", "zeros", "cut off before", "cut off within"])
def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "set.tar"
    pack(path, {f"{number}.jpg": IMAGE for number in range(6)})
    with tarfile.open(path) as archive:
        start = archive.getmembers()[3].offset
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[start + 5] ^= 1
    elif damage == "zeros":
        content[start : start + 512] = bytes(512)
    else:
        del content[start + (100 if damage == "cut off within" else 0) :]
    path.write_bytes(content)
    with pytest.raises(tarfile.TarError, match=f"damaged or cut off at byte {start}, behind its last member"):
        index_tar(str(path))


def test_a_header_that_leads_back_ends(tmp_path: Path) -> None:
    """A negative size would otherwise be read again and again."""
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("1.jpg"))
        entry = tarfile.TarInfo("2.jpg")
        header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = b"\xff" * 10 + (-512 & 0xFFFF).to_bytes(2, "big")  # base 256, as GNU tar writes large sizes
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        assert archive.fileobj is not None
        archive.fileobj.write(bytes(header))
    with pytest.raises(tarfile.TarError):
        index_tar(str(path))


def test_worker_processes_read_the_same_images(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    dataset = ImageDataset(table, Pipeline([]))
    alone = [dataset[i] for i in range(len(table))]
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    for expected, found in zip(alone, loader, strict=True):
        assert expected is not None
        assert torch.equal(expected[0], found[0])
