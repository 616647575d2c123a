from pathlib import Path

from trees.tree import Damage, Fault, Tree, drop_last_line, edit, overwrite, remove, together, write_images, write_lines

HEADER = "image_id class_id super_class_id path"
KINDS = ("bicycle_final", "coffee_maker_final", "toaster_final")
# (class, super-class, images): some products have one image only
TRAINING = ((1, 1, 2), (2, 1, 3), (3, 2, 1), (4, 2, 2), (5, 3, 3), (6, 3, 2))
TEST = ((7, 1, 2), (8, 2, 2), (9, 2, 3), (10, 3, 1), (11, 3, 2))


def rows() -> dict[str, list[str]]:
    """The lines of the two lists; the ids of images go on from one to the other."""
    lists: dict[str, list[str]] = {}
    image = 0
    for name, products in (("Ebay_train.txt", TRAINING), ("Ebay_test.txt", TEST)):
        lists[name] = []
        for product, kind, images in products:
            for i in range(images):
                image += 1
                path = f"{KINDS[kind - 1]}/1110851228{product:02d}_{i}.JPG"
                lists[name].append(f"{image} {product} {kind} {path}")
    return lists


def build(root: Path) -> None:
    for name, lines in rows().items():
        write_lines(root / name, [HEADER, *lines])
        write_images(root, [line.split()[-1] for line in lines])
    (root / "bicycle_final" / "._111085122801_0.JPG").write_bytes(b"\x00\x05\x16\x07")
    write_lines(root / "bicycle_final.txt", ["111085122801_0.JPG"])  # what else the archive holds


def renumber_last_class(number: str) -> Damage:
    return together(*(edit("Ebay_test.txt", f"^{image} 11 3 ", f"{image} {number} 3 ") for image in (22, 23)))


TREE = Tree(
    dataset="sop",
    build=build,
    counts={
        "train": {"images": 13, "class": 6, "super_class": 3},
        "test": {"images": 10, "class": 5, "super_class": 3},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*Ebay_train\.txt, Ebay_test\.txt .*\(https://.*lifted_struct/\)"
        ),
        "no_list": Fault(remove("Ebay_test.txt"), r"no Ebay_test\.txt in it"),
        "broken_line": Fault(
            edit("Ebay_train.txt", "^2 1 1 .*$", "2 1"),
            r"Ebay_train\.txt, line 3: '2 1', expected 4 columns",
        ),
        "not_a_number": Fault(
            edit("Ebay_test.txt", "^14 7 1 ", "14 seven 1 "),
            r"Ebay_test\.txt, line 2: class_id 'seven', expected a whole number",
        ),
        "fewer_images": Fault(
            drop_last_line("Ebay_train.txt"), r"12 images in the train split, published 13, in .*Ebay_train\.txt"
        ),
        "label_gap": Fault(
            renumber_last_class("12"),
            "no image has label 10 of level class, whose labels go to 11",
        ),
        "in_two_splits": Fault(
            edit("Ebay_test.txt", "111085122807_0.JPG", "111085122801_0.JPG"),
            r"image .*/bicycle_final/111085122801_0\.JPG is there 2 times, in the test and train split",
        ),
        "class_in_both": Fault(
            renumber_last_class("1"),
            r"1 class is in training and in test, such as label 0 \(1\)",
        ),
        "missing_image": Fault(
            remove("bicycle_final/111085122801_1.JPG"), r"image .*/bicycle_final/111085122801_1\.JPG: no such file"
        ),
        "unreadable_image": Fault(
            overwrite("toaster_final/111085122811_1.JPG"),
            r"image .*/toaster_final/111085122811_1\.JPG: cannot be decoded",
        ),
    },
)
