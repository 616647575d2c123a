from pathlib import Path

from trees.tree import Damage, Fault, Tree, dangle, move, overwrite, remove, together, write_images

# person 7 of the worked example, by cameras 1 and 2, distractors 0000 and junk -1
IMAGES = [
    "bounding_box_train/0001_c1s1_000001_01.jpg",
    "bounding_box_train/0001_c2s1_000002_01.jpg",
    "bounding_box_train/0004_c3s2_000003_02.jpg",
    "bounding_box_train/0004_c6s2_000004_02.jpg",
    "query/0003_c1s1_000011_00.jpg",
    "query/0007_c1s1_000012_00.jpg",
    "bounding_box_test/-1_c1s1_000021_01.jpg",
    "bounding_box_test/0000_c1s1_000022_01.jpg",
    "bounding_box_test/0000_c2s1_000023_01.jpg",
    "bounding_box_test/0003_c1s1_000024_01.jpg",
    "bounding_box_test/0003_c2s1_000025_01.jpg",
    "bounding_box_test/0007_c1s1_000026_01.jpg",
    "bounding_box_test/0007_c1s1_000027_01.jpg",
    "bounding_box_test/0007_c3s1_000028_01.jpg",
]


def build(root: Path) -> None:
    write_images(root, IMAGES)
    for name in ("bounding_box_train/Thumbs.db", "query/Thumbs.db"):
        (root / name).write_bytes(b"\xd0\xcf")


def rename(image: str, old: str, new: str) -> Damage:
    return move(image, image.replace(f"/{old}", f"/{new}"))


TREE = Tree(
    dataset="market1501",
    build=build,
    counts={
        "train": {"images": 4, "person": 2},
        "query": {"images": 2, "person": 2},
        "gallery": {"images": 7, "person": 3},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*bounding_box_train/, query/ .*\(https://.*project_reid\.html\)"
        ),
        "no_list": Fault(remove("query"), r"no query in it; give the folder of Market-1501"),
        "broken_line": Fault(
            lambda root: write_images(root, ["query/7.jpg"]),
            r"/query/7\.jpg: name '7\.jpg', expected one such as 0002_c1s1_000451_03\.jpg",
        ),
        "not_a_number": Fault(
            rename(IMAGES[0], "0001_c1", "0001_c9"),
            r"0001_c9s1_000001_01\.jpg: name '0001_c9s1_000001_01\.jpg', expected one such as",
        ),
        "fewer_images": Fault(remove(IMAGES[-1]), r"6 images in the gallery split, published 7, in "),
        # labels count the persons that there are: a missing one shows in their number
        "label_gap": Fault(rename(IMAGES[4], "0003", "0007"), r"1 person in the query split, published 2"),
        "in_two_splits": None,  # the splits are folders
        "class_in_both": Fault(
            together(*(rename(image, "0004", "0000") for image in IMAGES[2:4])),
            r"1 class is in training and in test, such as label 0 \(0000\)",
        ),
        "missing_image": Fault(dangle(IMAGES[3]), r"image .*/0004_c6s2_000004_02\.jpg: no such file"),
        "unreadable_image": Fault(overwrite(IMAGES[5]), r"image .*/0007_c1s1_000012_00\.jpg: cannot be decoded"),
    },
)
