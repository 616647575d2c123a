from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, together, write_images, write_lines

# all 200 classes, for the split is by number; the odd ones have two images
NAMES = [f"{number:03d}.Bird_{number}" for number in range(1, 201)]
IMAGES = [
    (number, f"{name}/Bird_{number}_{i:04d}_{7000 + i}.jpg")
    for number, name in enumerate(NAMES, 1)
    for i in range(1 + number % 2)
]


def build(root: Path) -> None:
    write_lines(root / "classes.txt", (f"{number} {name}" for number, name in enumerate(NAMES, 1)))
    write_lines(root / "images.txt", (f"{i} {path}" for i, (_, path) in enumerate(IMAGES, 1)))
    write_lines(root / "image_class_labels.txt", (f"{i} {number}" for i, (number, _) in enumerate(IMAGES, 1)))
    write_lines(root / "train_test_split.txt", (f"{i} {i % 2}" for i, _ in enumerate(IMAGES, 1)))
    write_lines(root / "bounding_boxes.txt", (f"{i} 60.0 27.0 325.0 304.0" for i, _ in enumerate(IMAGES, 1)))
    write_images(root / "images", (path for _, path in IMAGES))
    for stray in ("._images.txt", "images/._001.Bird_1", "images/001.Bird_1/._Bird_1_0000_7000.jpg"):
        (root / stray).write_bytes(b"\x00\x05\x16\x07")


MISMATCH = r"images\.txt: image 300 is {}, its class in image_class_labels\.txt is {}, {} in classes\.txt"

TREE = Tree(
    dataset="cub200",
    build=build,
    counts={"train": {"images": 150, "class": 100}, "test": {"images": 150, "class": 100}},
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*CUB-200-2011, which holds images\.txt, .*\(https://.*cub_200_2011/\)"
        ),
        "no_list": Fault(remove("image_class_labels.txt"), r"no image_class_labels\.txt in it"),
        "broken_line": Fault(
            edit("image_class_labels.txt", "^5 3$", "5"),
            r"image_class_labels\.txt, line 5: '5', expected 2 columns",
        ),
        "not_a_number": Fault(
            edit("image_class_labels.txt", "^5 3$", "5 three"),
            r"image_class_labels\.txt: class_id of image 5 'three', expected a whole number",
        ),
        "fewer_images": Fault(
            drop_last_line("images.txt"),
            r"images\.txt: 299 images, 300 in image_class_labels\.txt; image 300 is in one of the two alone",
        ),
        # the ids end at 200, and an image whose class has no name is a contradiction: there is no other gap
        "label_gap": Fault(
            together(
                edit("images.txt", "^300 200.Bird_200/", "300 201.Bird_200/"),
                edit("image_class_labels.txt", "^300 200$", "300 201"),
                edit("classes.txt", "^200 200.Bird_200$", "201 201.Bird_200"),
            ),
            r"classes\.txt, line 200: id '201', expected a whole number from 1 to 200",
        ),
        # the class says the split, and the folder the class: an image can't be in two without a contradiction
        "in_two_splits": Fault(
            edit("images.txt", f"^300 {IMAGES[-1][1]}$", f"300 {IMAGES[0][1]}"),
            MISMATCH.format(r"001\.Bird_1/Bird_1_0000_7000\.jpg", 200, r"200\.Bird_200"),
        ),
        "class_in_both": Fault(
            edit("image_class_labels.txt", "^300 200$", "300 1"),
            MISMATCH.format(r"200\.Bird_200/Bird_200_0000_7000\.jpg", 1, r"001\.Bird_1"),
        ),
        "missing_image": Fault(remove(f"images/{IMAGES[7][1]}"), rf"image .*/images/{IMAGES[7][1]}: no such file"),
        "unreadable_image": Fault(
            overwrite(f"images/{IMAGES[-1][1]}"), rf"image .*/images/{IMAGES[-1][1]}: cannot be decoded"
        ),
    },
)
