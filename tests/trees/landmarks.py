from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, write_images, write_lines

CLEAN, INDEX, SOLUTION = "train_clean.csv", "index.csv", "retrieval_solution_v2.1.csv"
TRAINING = {"27": ["00cba0067c078490", "0a1b2c3d4e5f6071"], "9": ["1f2e3d4c5b6a7988"], "140": ["2a00000000000001"]}
GALLERY = [f"{number:x}b0c0000000000{number:x}" for number in range(6)]
# two queries of one landmark, one that shares an image with them, one without positives and one of an ignored part
QUERIES = {
    "aaa0000000000001": ([0, 3], "Public"),
    "aaa0000000000002": ([0, 3], "Private"),
    "bbb0000000000001": ([3, 5], "Private"),
    "ccc0000000000001": ([], "Public"),
    "ddd0000000000001": ([1], "Ignored"),
}


def place(split: str, image: str) -> str:
    return f"{split}/{'/'.join(image[:3])}/{image}.jpg"


def build(root: Path) -> None:
    training = [image for images in TRAINING.values() for image in images]
    write_lines(
        root / CLEAN,
        ["landmark_id,images", *(f"{landmark},{' '.join(images)}" for landmark, images in TRAINING.items())],
    )
    write_lines(root / INDEX, ["id", *GALLERY])
    solutions = [
        f"{image},{' '.join(GALLERY[i] for i in positives) or 'None'},{part}"
        for image, (positives, part) in QUERIES.items()
    ]
    write_lines(root / SOLUTION, ["id,images,Usage", *solutions])
    for split, images in (("train", training), ("index", GALLERY), ("test", [*QUERIES])):
        write_images(root, [place(split, image) for image in images])


TREE = Tree(
    dataset="landmarks",
    build=build,
    counts={
        "train": {"images": 4, "landmark": 3},
        "query": {"images": 3, "landmark": 2},
        "gallery": {"images": 6, "landmark": 3},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*train_clean\.csv, .*\(https://github\.com/.*google-landmark\)"
        ),
        "no_list": Fault(remove(SOLUTION), r"no retrieval_solution_v2\.1\.csv in it"),
        "broken_line": Fault(
            edit(SOLUTION, ",Ignored", ""), r"retrieval_solution_v2\.1\.csv, line 6: 'ddd.*', expected 3 columns"
        ),
        "not_a_number": Fault(
            edit(INDEX, f"^{GALLERY[2]}", "2"), r"id '2' in index, expected one such as 000a0aee5e90cbaf"
        ),
        "fewer_images": Fault(edit(CLEAN, " 0a1b2c3d4e5f6071", ""), r"3 images in the train split, published 4"),
        # labels count the landmarks that there are: a missing one shows in their number
        "label_gap": Fault(edit(CLEAN, "^9,", "27,"), r"2 landmark in the train split, published 3"),
        "in_two_splits": Fault(
            edit(INDEX, f"^{GALLERY[2]}", GALLERY[1]),
            rf"image .*/index/1/b/0/{GALLERY[1]}\.jpg is there 2 times, in the gallery split",
        ),
        # the landmarks of the two aren't related: the nearest is an image that the index lacks
        "class_in_both": Fault(
            drop_last_line(INDEX),
            rf"retrieval_solution_v2\.1\.csv, line 4: image {GALLERY[5]} isn't in index\.csv",
        ),
        "missing_image": Fault(remove(place("index", GALLERY[4])), rf"image .*/{GALLERY[4]}\.jpg: no such file"),
        "unreadable_image": Fault(
            overwrite(place("test", "aaa0000000000001")), r"image .*/aaa0000000000001\.jpg: cannot be decoded"
        ),
    },
)
