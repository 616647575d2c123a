from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, write_images, write_lines

QUERIES, POSITIVES = "image_ids/image_query_ids.txt", "image_ids/positive_ids.txt"
IMAGES = {
    QUERIES: ["mug_001/query/Q001_00.jpg", "mug_001/query/Q001_01.jpg", "toy_002/query/Q002_00.jpg"],
    POSITIVES: [
        "mug_001/pos/P001_00.jpg",
        "toy_002/pos/P002_00.jpg",
        "toy_002/pos/P002_01.jpg",
        "toy_002/pos/P002_02.jpg",
    ],
}


def build(root: Path) -> None:
    for name, images in IMAGES.items():
        write_lines(root / name, [f"{image},0.41,2" if name == POSITIVES else image for image in images])
        write_images(root / "ilias_core", images)
    write_lines(root / "image_ids/text_query_ids.txt", ["mug_001/query/T001.txt"])
    write_lines(root / "ilias_core/mug_001/query/T001.txt", ["a mug"])
    write_lines(root / "ilias_core/mug_001/query/Q001_00_bbox.txt", ["1 1 5 5"])


TREE = Tree(
    dataset="ilias",
    build=build,
    counts={"query": {"images": 3, "object": 2}, "gallery": {"images": 4, "object": 2}},
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*image_ids/ .*\(https://github\.com/ilias-vrg/ilias\)"),
        "no_list": Fault(remove(POSITIVES), r"no image_ids/positive_ids\.txt in it"),
        "broken_line": Fault(
            edit(QUERIES, "^mug_001/query/Q001_01", "Q001_01"),
            r"image_query_ids\.txt, line 2: name 'Q001_01\.jpg', expected one such as name_001/query/Q001_00\.jpg",
        ),
        # the lists have no number that counts: the nearest is a line without an image
        "not_a_number": Fault(edit(POSITIVES, "^mug_001/pos/P001_00.jpg", ""), r"positive_ids\.txt, line 1: name ',0"),
        "fewer_images": Fault(drop_last_line(POSITIVES), r"3 images in the gallery split, published 4"),
        # labels count the objects that there are: a missing one shows in their number
        "label_gap": Fault(edit(QUERIES, "^toy_002", "mug_001"), r"1 object in the query split, published 2"),
        "in_two_splits": Fault(
            edit(POSITIVES, "P002_01", "P002_00"),
            r"image .*/toy_002/pos/P002_00\.jpg is there 2 times, in the gallery split",
        ),
        # there is no training: the nearest is a query among the positives
        "class_in_both": Fault(
            edit(POSITIVES, "toy_002/pos/P002_02", "toy_002/query/Q002_00"),
            r"positive_ids\.txt, line 4: name 'toy_002/query/Q002_00\.jpg,.*', expected one such as name_001/pos/P0",
        ),
        "missing_image": Fault(
            remove("ilias_core/toy_002/pos/P002_02.jpg"), r"image .*/toy_002/pos/P002_02\.jpg: no such file"
        ),
        "unreadable_image": Fault(
            overwrite("ilias_core/mug_001/query/Q001_00.jpg"), r"image .*/Q001_00\.jpg#1,1,6,6: cannot be decoded"
        ),
    },
)
