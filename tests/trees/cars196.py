from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat
from trees.tree import Damage, Fault, Tree, overwrite, remove, write_images

# all 196 classes, for the split is by number; the odd ones have two images
NAMES = [f"Maker C/V Van {number} 2012" for number in range(1, 197)]
CLASSES = [number for number in range(1, 197) for _ in range(1 + number % 2)]
BOX = {"bbox_x1": 30, "bbox_y1": 52, "bbox_x2": 246, "bbox_y2": 147}

Record = dict[str, Any]
Change = Callable[[Record], Record]


def cells(values: Iterable[Any]) -> np.ndarray:
    """A cell array of MATLAB, one row."""
    array = np.empty((1, len(values := list(values))), dtype=object)
    array[0] = values
    return array


def struct(records: Sequence[Record]) -> np.ndarray:
    """A struct array of MATLAB, one row."""
    array = np.empty((1, len(records)), dtype=[(field, object) for field in records[0]])
    for field in records[0]:
        array[field] = cells(record[field] for record in records)
    return array


def records() -> list[Record]:
    return [
        {"relative_im_path": f"car_ims/{i:06d}.jpg"} | BOX | {"class": np.uint8(number), "test": np.uint8(i % 2)}
        for i, number in enumerate(CLASSES, 1)
    ]


def write_lists(root: Path, annotations: Sequence[Record], names: Sequence[str] = NAMES) -> None:
    savemat(root / "cars_annos.mat", {"annotations": struct(annotations), "class_names": cells(names)})


def build(root: Path) -> None:
    write_lists(root, records())
    write_images(root, (record["relative_im_path"] for record in records()))


def where(field: str, value: Any, **changes: Any) -> Change:
    """Changes the records whose ``field`` is ``value``."""
    return lambda record: record | changes if record[field] == value else record


def changed(change: Change, names: Sequence[str] = NAMES) -> Damage:
    return lambda root: write_lists(root, [change(record) for record in records()], names)


TREE = Tree(
    dataset="cars196",
    build=build,
    counts={"train": {"images": 147, "class": 98}, "test": {"images": 147, "class": 98}},
    faults={
        "no_root": Fault(
            remove("."),
            r"no such folder; .*car_ims/ and cars_annos\.mat, or cars_train/.*\(https://.*car_dataset\.html\)",
        ),
        "no_list": Fault(remove("cars_annos.mat"), r"no cars_annos\.mat in it"),
        "broken_line": Fault(
            changed(lambda record: {field: value for field, value in record.items() if field != "class"}),
            r"cars_annos\.mat: its annotations have no class",
        ),
        "not_a_number": Fault(
            changed(where("class", 7, **{"class": "seven"})),
            r"cars_annos\.mat, annotation \d+: class 'seven', expected a whole number",
        ),
        "fewer_images": Fault(
            lambda root: write_lists(root, records()[1:]),
            r"146 images in the train split, published 147, in .*cars_annos\.mat",
        ),
        "label_gap": Fault(
            changed(where("class", 196, **{"class": 197}), [*NAMES, "Maker 197"]),
            "no image has label 195 of level class, whose labels go to 196",
        ),
        "in_two_splits": Fault(
            changed(where("relative_im_path", "car_ims/000294.jpg", relative_im_path="car_ims/000001.jpg")),
            r"image .*/car_ims/000001\.jpg is there 2 times, in the test and train split",
        ),
        # a class's number says its split: an image of another class moves with its number
        "class_in_both": Fault(
            changed(where("relative_im_path", "car_ims/000001.jpg", **{"class": 99})),
            "146 images in the train split, published 147",
        ),
        "missing_image": Fault(remove("car_ims/000001.jpg"), r"image .*/car_ims/000001\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("car_ims/000294.jpg"), r"image .*/car_ims/000294\.jpg: cannot be decoded"),
    },
)
