import shutil
from pathlib import Path

from trees.tree import Fault, Tree, dangle, overwrite, remove, write_images

IMAGES = [
    "train/birds/robin/1.jpg",
    "train/birds/robin/2.JPG",
    "train/birds/wren/a b.jpeg",
    "train/cats/lynx/1.jpg",
    "train/cats/lynx/2.jpg",
    "test/birds/owl/1.jpg",
    "test/birds/owl/2.jpg",
    "test/cats/puma/1.jpg",
]


def build(root: Path) -> None:
    write_images(root, IMAGES)
    (root / "train/birds/robin/._1.jpg").write_bytes(b"\x00\x05\x16\x07")
    (root / "train/birds/robin/Thumbs.db").write_bytes(b"\xd0\xcf")
    (root / ".cache").mkdir()


TREE = Tree(
    dataset="folder",
    build=build,
    counts={
        "train": {"images": 5, "class": 3, "super_class": 2},
        "test": {"images": 3, "class": 2, "super_class": 2},
    },
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*class/\*\.jpg or super_class/.*\(docs/own_data\.md\)"),
        "no_list": Fault(remove("test"), "[0-9] images in the train split, published 5"),  # drawn from train alone
        # a folder has no lines and no numbers: the nearest is an image or a class that isn't where it should be
        "broken_line": Fault(
            lambda root: write_images(root, ["train/3.jpg"]), r"/train/3\.jpg: an image outside of a class's folder"
        ),
        "not_a_number": Fault(
            lambda root: write_images(root, ["train/cats/3.jpg"]),
            r"train/cats/3\.jpg is in a class, test/birds/owl/1\.jpg in a class of a super-class",
        ),
        "fewer_images": Fault(remove("train/birds/robin/2.JPG"), "4 images in the train split, published 5"),
        "label_gap": Fault(
            remove("train/birds/wren/a b.jpeg"), r"train/birds/wren: no image in it \(by suffix: \.apng "
        ),
        "in_two_splits": None,  # the splits are folders
        "class_in_both": Fault(
            lambda root: shutil.move(root / "test/cats/puma", root / "test/cats/lynx") and None,
            r"1 class is in training and in test, such as label \d \(cats/lynx\)",
        ),
        "missing_image": Fault(dangle("test/cats/puma/1.jpg"), r"image .*/test/cats/puma/1\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("test/cats/puma/1.jpg"), r"image .*/puma/1\.jpg: cannot be decoded"),
    },
    arguments={"val_fraction": 0},
)
