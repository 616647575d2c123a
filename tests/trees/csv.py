from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, write_images, write_lines

HEADER = "path,level0,level1,split,weight"
ROWS = [
    "images/1.jpg,robin,birds,train,3",
    "images/2.jpg,robin,birds,train,",
    "images/3.jpg,wren,birds,train,1",
    '"images/4, left.jpg",lynx,cats,train,2',
    "images/5.jpg,owl,birds,query,2",
    "images/6.jpg,owl,birds,gallery,2",
    "images/7.jpg,owl,birds,gallery,2",
    "images/8.jpg,puma,cats,query,9",
    "images/9.jpg,puma,cats,gallery,9",
]


def build(root: Path) -> None:
    write_lines(root / "mine.csv", [HEADER, *ROWS])
    write_images(root, ["images/4, left.jpg", *(f"images/{i}.jpg" for i in range(1, 10) if i != 4)])


TREE = Tree(
    dataset="csv",
    build=build,
    counts={
        "train": {"images": 4, "level0": 3, "level1": 2},
        "query": {"images": 2, "level0": 2, "level1": 2},
        "gallery": {"images": 3, "level0": 2, "level1": 2},
    },
    faults={
        "no_root": Fault(remove("."), r"no such file; .*the columns path and label .*\(docs/own_data\.md\)"),
        "no_list": Fault(remove("mine.csv"), r"no \.csv file in it; give the path of a \.csv file of your own"),
        "broken_line": Fault(
            edit("mine.csv", "^images/3.jpg,wren,birds,train,1$", "images/3.jpg,wren"),
            r"mine\.csv, line 4: 2 cells, the header has 5",
        ),
        # any string is a label
        "not_a_number": Fault(
            edit("mine.csv", "images/3.jpg,wren,", "images/3.jpg, ,"),
            r"mine\.csv, line 4: an empty cell in the column level0",
        ),
        "fewer_images": Fault(
            drop_last_line("mine.csv"), r"2 images in the gallery split, published 3, in .*mine\.csv"
        ),
        # the labels count the names that there are: a missing one shows in their number
        "label_gap": Fault(edit("mine.csv", "wren", "robin"), "2 level0 in the train split, published 3"),
        "in_two_splits": Fault(
            edit("mine.csv", "images/8.jpg", "./images/1.jpg"),
            r"mine\.csv, line 9: \./images/1\.jpg stands in line 2 already",
        ),
        "class_in_both": Fault(
            edit("mine.csv", "wren,birds", "puma,cats"),
            r"1 class is in training and in test, such as label 2 \(puma\)",
        ),
        "missing_image": Fault(remove("images/9.jpg"), r"image .*/images/9\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("images/4, left.jpg"), r"image .*/images/4, left\.jpg: cannot be decoded"),
    },
    arguments={"val_fraction": 0},
)
