from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, write_images, write_lines

IMAGES = {
    "train": ["0001_c001_00016450_0.jpg", "0001_c020_00016460_0.jpg", "0004_c002_00017450_0.jpg"],
    "query": ["0002_c002_00030600_0.jpg", "0005_c003_00040600_1.jpg"],
    "test": [
        "0002_c002_00030600_0.jpg",
        "0002_c002_00030605_0.jpg",
        "0002_c003_00030680_1.jpg",
        "0005_c002_00040500_0.jpg",
        "0005_c003_00040600_1.jpg",
    ],
}


def build(root: Path) -> None:
    for name, images in IMAGES.items():
        write_lines(root / f"name_{name}.txt", images)
        write_images(root / f"image_{name}", images)


TREE = Tree(
    dataset="veri776",
    build=build,
    counts={
        "train": {"images": 3, "vehicle": 2},
        "query": {"images": 2, "vehicle": 2},
        "gallery": {"images": 5, "vehicle": 2},
    },
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*name_train\.txt, .*\(https://github\.com/JDAI-CV/.*\)"),
        "no_list": Fault(remove("name_query.txt"), r"no name_query\.txt in it"),
        "broken_line": Fault(
            edit("name_test.txt", "^0002_c003.*", "0002.jpg"),
            r"name_test\.txt, line 3: name '0002\.jpg', expected one such as 0002_c002_00030600_0\.jpg",
        ),
        "not_a_number": Fault(edit("name_train.txt", "^0004_", "four_"), r"name_train\.txt, line 3: name 'four_c002"),
        "fewer_images": Fault(drop_last_line("name_test.txt"), r"4 images in the gallery split, published 5, in "),
        # labels count the vehicles that there are: a missing one shows in their number
        "label_gap": Fault(edit("name_query.txt", "^0005", "0002"), r"1 vehicle in the query split, published 2"),
        # each split has a folder: the same image can be listed twice in one alone
        "in_two_splits": Fault(
            edit("name_test.txt", "0002_c002_00030605_0", "0002_c002_00030600_0"),
            r"image .*/image_test/0002_c002_00030600_0\.jpg is there 2 times, in the gallery split",
        ),
        "class_in_both": Fault(
            edit("name_train.txt", "^0004", "0005"), r"1 class is in training and in test, such as label 2 \(0005\)"
        ),
        "missing_image": Fault(
            remove("image_query/0005_c003_00040600_1.jpg"), r"image .*/0005_c003_00040600_1\.jpg: no such file"
        ),
        "unreadable_image": Fault(
            overwrite("image_train/0001_c001_00016450_0.jpg"), r"image .*/0001_c001_00016450_0\.jpg: cannot be decoded"
        ),
    },
)
