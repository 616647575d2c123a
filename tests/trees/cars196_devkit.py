from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.io import savemat
from trees.cars196 import BOX, CLASSES, NAMES, Change, Record, cells, struct, where
from trees.cars196 import TREE as OTHER_LAYOUT
from trees.tree import Damage, Fault, Tree, overwrite, remove, write_images

LISTS = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}


def records() -> dict[str, list[Record]]:
    """Both parts hold images of all classes, in no order, and number them from 1."""
    order = np.random.default_rng(0).permutation(CLASSES)
    parts = zip(LISTS, np.array_split(order, 2), strict=True)
    return {
        part: [BOX | {"class": np.uint8(number), "fname": f"{i:05d}.jpg"} for i, number in enumerate(numbers, 1)]
        for part, numbers in parts
    }


def write_list(root: Path, part: str, annotations: Sequence[Record]) -> None:
    savemat(root / "devkit" / LISTS[part], {"annotations": struct(annotations)})


def write_names(root: Path, names: Sequence[str] = NAMES) -> None:
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": cells(names)})


def build(root: Path) -> None:
    (root / "devkit").mkdir()
    write_names(root)
    for part, annotations in records().items():
        write_list(root, part, annotations)
        write_images(root / part, (record["fname"] for record in annotations))
    unlabeled = [{key: record[key] for key in record if key != "class"} for record in records()["cars_test"]]
    savemat(root / "devkit" / "cars_test_annos.mat", {"annotations": struct(unlabeled)})


def changed(part: str, change: Change) -> Damage:
    return lambda root: write_list(root, part, [change(record) for record in records()[part]])


def renumber_last_class(root: Path) -> None:
    write_names(root, [*NAMES, "Maker 197"])
    for part in LISTS:
        changed(part, where("class", 196, **{"class": 197}))(root)


# the official training images of a class of training, and of one of testing
OF_TRAINING = next(record["fname"] for record in records()["cars_train"] if record["class"] <= 98)
OF_TESTING = next(record["fname"] for record in records()["cars_train"] if record["class"] > 98)


def lose_an_image(root: Path) -> None:
    write_list(root, "cars_train", [record for record in records()["cars_train"] if record["fname"] != OF_TRAINING])


def take_the_list_without_classes(root: Path) -> None:
    (root / "devkit" / "cars_test_annos.mat").replace(root / "devkit" / LISTS["cars_test"])


TREE = Tree(
    dataset="cars196",
    build=build,
    counts=OTHER_LAYOUT.counts,
    faults={
        "no_root": OTHER_LAYOUT.faults["no_root"],
        "no_list": Fault(
            remove("devkit/cars_test_annos_withlabels.mat"), r"no devkit/cars_test_annos_withlabels\.mat or .* in it"
        ),
        "broken_line": Fault(
            take_the_list_without_classes,
            r"cars_test_annos_withlabels\.mat: its annotations have no class",
        ),
        "not_a_number": Fault(
            overwrite("devkit/cars_train_annos.mat"),
            r"devkit/cars_train_annos\.mat: cannot be read as a \.mat file",
        ),
        "fewer_images": Fault(
            lose_an_image,
            "146 images in the train split, published 147, in .*cars_train_annos.mat and .*cars_test_annos_withlabels",
        ),
        "label_gap": Fault(renumber_last_class, "no image has label 195 of level class, whose labels go to 196"),
        "in_two_splits": Fault(
            changed("cars_train", where("fname", OF_TESTING, fname=OF_TRAINING)),
            rf"image .*/cars_train/{OF_TRAINING} is there 2 times, in the test and train split",
        ),
        "class_in_both": Fault(
            changed("cars_train", where("fname", OF_TRAINING, **{"class": 99})),
            "146 images in the train split, published 147",
        ),
        "missing_image": Fault(remove("cars_test/00001.jpg"), r"image .*/cars_test/00001\.jpg: no such file"),
        "unreadable_image": Fault(
            overwrite("cars_train/00001.jpg"), r"image .*/cars_train/00001\.jpg: cannot be decoded"
        ),
    },
)
