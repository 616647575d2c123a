from pathlib import Path

from trees.tree import Fault, Tree, dangle, move, overwrite, remove, write_images

OTHER_SUBSETS = ("nature", "sketches", "objects", "products", "faces")  # of categories from 200 on, which aren't there
IMAGES = [f"images/{category}_{name}" for category in range(11) for name in ("a_b.jpg", "n01_2.JPEG")]


def build(root: Path) -> None:
    write_images(root, IMAGES)


TREE = Tree(
    dataset="gpr1200",
    build=build,
    counts={
        "query": {"images": 22, "landmarks": 11, **dict.fromkeys(OTHER_SUBSETS, 0)},
        "gallery": {"images": 22, "landmarks": 11, **dict.fromkeys(OTHER_SUBSETS, 11)},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*images/ with 0_<name>\.jpg .*\(https://github\.com/.*GPR1200\)"
        ),
        "no_list": Fault(remove("images"), r"no images in it; give the folder of GPR1200"),
        "broken_line": Fault(
            move("images/3_a_b.jpg", "images/3.jpg"), r"/images/3\.jpg: name '3\.jpg', expected one such as 1199_a\.jpg"
        ),
        "not_a_number": Fault(move("images/3_a_b.jpg", "images/x_a_b.jpg"), r"name 'x_a_b\.jpg', expected one such as"),
        "fewer_images": Fault(remove("images/3_a_b.jpg"), r"21 images in the query split, published 22"),
        "label_gap": Fault(
            lambda root: (
                [move(f"images/10_{name}", f"images/12_{name}")(root) for name in ("a_b.jpg", "n01_2.JPEG")] and None
            ),
            r"no image has label 10 of level landmarks, whose labels go to 12",
        ),
        "in_two_splits": None,  # one folder holds all images
        # there is no training: the nearest is a category of another data set
        "class_in_both": Fault(
            move("images/3_a_b.jpg", "images/1200_a_b.jpg"),
            r"name '1200_a_b\.jpg', expected one such as 1199_a\.jpg",
        ),
        "missing_image": Fault(dangle("images/3_a_b.jpg"), r"image .*/3_a_b\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("images/0_a_b.jpg"), r"image .*/0_a_b\.jpg: cannot be decoded"),
    },
)
