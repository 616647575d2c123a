import io
import tarfile
from pathlib import Path

from trees.tree import Damage, Fault, Tree, encoded, overwrite, remove

IMAGES = {
    "train-0.tar": {"a/1": "robin", "a/2": "robin", "b/1": "wren"},
    "train-1.tar": {"3": "lynx", "4": "lynx"},
    "test-0.tar": {"1": "owl", "2": "owl", "3": "puma"},
}
KINDS = ("RGB", "L", "CMYK", "turned")


def pack(path: Path, members: dict[str, bytes]) -> None:
    """Write a tar file of members by name."""
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpack(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def change(shard: str, **changed: bytes | None) -> Damage:
    """Members of a shard have another content, None for no such member; ``_`` stands for a dot in a name."""

    def damage(root: Path) -> None:
        members: dict[str, bytes | None] = {**unpack(root / shard)}
        members.update({name.replace("_", "."): content for name, content in changed.items()})
        pack(root / shard, {name: content for name, content in members.items() if content is not None})

    return damage


def into_training(root: Path) -> None:
    """A shard of the test is in the folder of another split."""
    (root / "train").mkdir()
    (root / "test-0.tar").rename(root / "train/test-0.tar")


def build(root: Path) -> None:
    root.mkdir(exist_ok=True)
    for shard, classes in IMAGES.items():
        members = {"._1.jpg": b"\x00\x05\x16\x07"}
        for i, (name, label) in enumerate(classes.items()):
            members |= {f"./{name}.JPG": encoded(KINDS[i]), f"./{name}.cls": f"{label}\n".encode()}
        pack(root / shard, members)


TREE = Tree(
    dataset="shards",
    build=build,
    counts={"train": {"images": 5, "class": 3}, "test": {"images": 3, "class": 2}},
    faults={
        "no_root": Fault(remove("."), r"no such file or folder; .*\*\.tar, each image .*\(docs/own_data\.md\)"),
        "no_list": Fault(
            remove("test-0.tar"), "[0-9] images in the train split, published 5"
        ),  # drawn from train alone
        "broken_line": Fault(
            change("test-0.tar", **{"./1_cls": None}), r"test-0\.tar/1\.JPG: no \.cls beside it, but nothing else; "
        ),
        "not_a_number": Fault(
            change("test-0.tar", **{"./1_cls": b"\xff"}), r"test-0\.tar/1\.JPG: its \.cls gives no class \(UnicodeDec"
        ),
        "fewer_images": Fault(change("train-1.tar", **{"./3_JPG": None}), "4 images in the train split, published 5"),
        "label_gap": Fault(overwrite("train-0.tar"), r"train-0\.tar: no tar file without compression that can be read"),
        "in_two_splits": Fault(
            into_training,
            r"train/test-0\.tar: its path names no split, or two of them, while others are named; one of train, val",
        ),
        "class_in_both": Fault(
            change("test-0.tar", **{"./3_cls": b"lynx"}), r"1 class is in training and in test, such as label \d \(lynx"
        ),
        "missing_image": None,  # the images are in the lists
        "unreadable_image": Fault(
            change("test-0.tar", **{"./3_JPG": b"none"}), r"image .*/test-0\.tar/3\.JPG: cannot be decoded"
        ),
    },
    arguments={"val_fraction": 0},
)
