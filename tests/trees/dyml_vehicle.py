from collections.abc import Iterable
from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, write_images

HEADER = "fname, coarse_id, middle_id, fine_id"
# (coarse, middle, fine) of the images: ids of which some are missing
TRAINING = [(1, 10, 100), (1, 10, 100), (1, 10, 102), (1, 12, 105), (3, 13, 107), (3, 13, 107), (3, 17, 108)]
# of each benchmark's queries and gallery; its ids may be those of other classes in training
BENCHMARKS = {
    "fine": ([100, 200, 201], [200, 100, 201, 202, 100]),
    "middle": ([10, 11], [11, 10, 11]),
    "coarse": ([2, 1, 1], [1, 2]),
}


def write_list(path: Path, header: str, ids: Iterable[Iterable[int]]) -> None:
    """As it is published: the first record follows the header in the same line."""
    records = [", ".join(map(str, [f"{i}.jpg", *cells])) for i, cells in enumerate(ids)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n".join(records) + "\n")


def numbered_images(folder: Path, number: int) -> None:
    write_images(folder, [f"{i}.jpg" for i in range(number)])


def build_training(root: Path) -> None:
    write_list(root / "train" / "label.csv", HEADER, TRAINING)
    numbered_images(root / "train" / "imgs", len(TRAINING))
    (root / "train" / "imgs" / "._0.jpg").write_bytes(b"\x00\x05\x16\x07")


def build(root: Path) -> None:
    build_training(root)
    for level, lists in BENCHMARKS.items():
        for split, ids in zip(("query", "gallery"), lists, strict=True):
            write_list(root / f"bmk_{level}" / f"{split}.csv", "fname, labels", [[number] for number in ids])
            numbered_images(root / f"bmk_{level}" / split, len(ids))


TREE = Tree(
    dataset="dyml_vehicle",
    build=build,
    counts={
        "train": {"images": 7, "fine": 5, "middle": 4, "coarse": 2},
        "query": {"images": 8, "fine": 3, "middle": 2, "coarse": 2},
        "gallery": {"images": 10, "fine": 4, "middle": 2, "coarse": 2},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*train/label\.csv.*bmk_fine/.*\(https://.*/DynamicMetricLearning\)"
        ),
        "no_list": Fault(remove("bmk_middle/gallery.csv"), r"no bmk_middle/gallery\.csv in it"),
        "broken_line": Fault(
            edit("train/label.csv", "^3.jpg, 1, 12, 105$", "3.jpg, 1"),
            r"train/label\.csv, line 4: '3\.jpg, 1', expected 4 columns",
        ),
        "not_a_number": Fault(
            edit("bmk_fine/query.csv", "labels0.jpg, 100", "labels0.jpg, one"),
            r"bmk_fine/query\.csv: line 1, labels 'one', expected a whole number",
        ),
        "fewer_images": Fault(
            drop_last_line("bmk_coarse/gallery.csv"),
            "9 images in the gallery split, published 10, in the csv files",
        ),
        # ids have gaps of their own: a missing class shows in their number
        "label_gap": Fault(
            edit("train/label.csv", "^3.jpg, 1, 12, 105$", "3.jpg, 1, 10, 102"),
            "4 fine in the train split, published 5",
        ),
        # training and each list of the test have folders of their own
        "in_two_splits": Fault(
            edit("bmk_fine/gallery.csv", "^2.jpg, 201$", "0.jpg, 201"),
            r"image .*/bmk_fine/gallery/0\.jpg is there 2 times, in the gallery split",
        ),
        "class_in_both": None,  # the test's ids are a space of their own
        "missing_image": Fault(remove("bmk_fine/query/2.jpg"), r"image .*/bmk_fine/query/2\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("train/imgs/6.jpg"), r"image .*/train/imgs/6\.jpg: cannot be decoded"),
    },
)
