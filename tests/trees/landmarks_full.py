from pathlib import Path

from trees import landmarks
from trees.tree import Fault, Tree, edit, remove, write_lines

ALL = "train.csv"
TRAINING = {image: landmark for landmark, images in landmarks.TRAINING.items() for image in images}


def build(root: Path) -> None:
    """Without the cleaned list, and with a comma in an address."""
    landmarks.build(root)
    (root / landmarks.CLEAN).unlink()
    addresses = ["https://upload.example/a.jpg", '"https://upload.example/b,_in_c.jpg"', "https://d", "https://e"]
    rows = zip(TRAINING.items(), addresses, strict=True)
    write_lines(root / ALL, ["id,url,landmark_id", *(f"{image},{url},{landmark}" for (image, landmark), url in rows)])


TREE = Tree(
    dataset="landmarks_full",
    build=build,
    counts=landmarks.TREE.counts,
    faults={
        **landmarks.TREE.faults,
        "no_root": Fault(
            remove("."), r"no such folder; .*train\.csv for dataset\.reader\.clean=false, .*\(https://github"
        ),
        "no_list": Fault(remove(ALL), r"no train\.csv in it"),
        "broken_line": Fault(
            edit(ALL, ",https://d,9$", ",9"), r"train\.csv, line 4: '1f2e3d4c5b6a7988,9', expected 3 columns"
        ),
        "not_a_number": Fault(
            edit(ALL, ",9$", ",nine"), r"train\.csv, line 4: landmark_id 'nine', expected a whole number"
        ),
        "fewer_images": Fault(edit(ALL, "^0a1b2c3d4e5f6071,.*\n", ""), r"3 images in the train split, published 4"),
        "label_gap": Fault(edit(ALL, ",9$", ",27"), r"2 landmark in the train split, published 3"),
    },
)
