from pathlib import Path

from trees.dyml_vehicle import HEADER, build_training, numbered_images, write_list
from trees.dyml_vehicle import TREE as VEHICLE
from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove

FOLDER = "mini-bmk_all_in_one"
# (coarse, middle, fine) of the images; 10 is another class than in training
TEST = [(4, 20, 300), (4, 20, 300), (4, 10, 301), (9, 22, 302), (9, 22, 302), (9, 22, 307)]


def build(root: Path) -> None:
    build_training(root)
    write_list(root / FOLDER / "label.csv", HEADER, TEST)
    numbered_images(root / FOLDER / "imgs", len(TEST))


TREE = Tree(
    dataset="dyml_product",
    build=build,
    counts={
        "train": VEHICLE.counts["train"],
        "test": {"images": 3 * len(TEST), "fine": 4, "middle": 3, "coarse": 2},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*mini-bmk_all_in_one/.*label\.csv.*\(https://.*/DynamicMetricLearning\)"
        ),
        "no_list": Fault(remove(f"{FOLDER}/label.csv"), rf"no {FOLDER}/label\.csv in it"),
        "broken_line": VEHICLE.faults["broken_line"],
        "not_a_number": Fault(
            edit(f"{FOLDER}/label.csv", "^3.jpg, 9, 22, 302$", "3.jpg, 9, car, 302"),
            rf"{FOLDER}/label\.csv: line 4, middle_id 'car', expected a whole number",
        ),
        "fewer_images": Fault(
            drop_last_line(f"{FOLDER}/label.csv"), "15 images in the test split, published 18, in the csv files of "
        ),
        "label_gap": VEHICLE.faults["label_gap"],
        "in_two_splits": Fault(
            edit(f"{FOLDER}/label.csv", "^4.jpg", "3.jpg"),
            rf"image .*/{FOLDER}/imgs/3\.jpg is there 2 times, in the test split",
        ),
        "class_in_both": None,  # the test's ids are a space of their own
        "missing_image": Fault(remove(f"{FOLDER}/imgs/5.jpg"), rf"image .*/{FOLDER}/imgs/5\.jpg: no such file"),
        "unreadable_image": Fault(
            overwrite(f"{FOLDER}/imgs/0.jpg"), rf"image .*/{FOLDER}/imgs/0\.jpg: cannot be decoded"
        ),
    },
)
