import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trees.tree import Damage, Fault, Tree, overwrite, remove, write_images

LIST = "gnd_roxford5k.pkl"
# the worked ranking j0 e0 h0 n0 e1 n1 h1 j1 n2 e2 is that of the first query; image 4 is a positive of both landmarks
GALLERY = ["j0", "e0", "h0", "n0", "e1", "n1", "h1", "j1", "n2", "e2"]
TRUTH: dict[str, Any] = {
    "imlist": GALLERY,
    "qimlist": ["all_souls_1", "all_souls_2", "radcliffe_1"],
    "gnd": [
        {"bbx": [1.5, 1.0, 9.0, 7.0], "easy": [1, 4, 9], "hard": [2, 6], "junk": [0, 7]},
        {"bbx": [0.0, 0.0, 9.0, 7.0], "easy": [1, 4, 9], "hard": [2, 6], "junk": []},
        {"bbx": [0.0, 0.0, 9.0, 7.0], "easy": [4], "hard": [5], "junk": [2]},
    ],
}


def build(root: Path) -> None:
    (root / LIST).write_bytes(pickle.dumps(TRUTH))
    write_images(root / "jpg", [f"{name}.jpg" for name in [*TRUTH["qimlist"], *GALLERY]])


def change(edit: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(root: Path) -> None:
        truth = pickle.loads((root / LIST).read_bytes())
        edit(truth)
        (root / LIST).write_bytes(pickle.dumps(truth))

    return damage


TREE = Tree(
    dataset="roxford5k",
    build=build,
    counts={
        "query": {"images": 3, "easy": 2, "medium": 2, "hard": 2},
        "gallery": {"images": 10, "easy": 3, "medium": 3, "hard": 3},
    },
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*gnd_roxford5k\.pkl .*\(https://github\.com/.*revisitop\)"),
        "no_list": Fault(remove(LIST), r"no gnd_roxford5k\.pkl or gnd_rparis6k\.pkl in it"),
        "broken_line": Fault(
            change(lambda truth: truth["gnd"][1].pop("hard")),
            r"gnd_roxford5k\.pkl: gnd of all_souls_2: no list hard in it",
        ),
        "not_a_number": Fault(
            change(lambda truth: truth["gnd"][2]["junk"].append(10)),
            r"gnd_roxford5k\.pkl: gnd of radcliffe_1: junk has 10, expected whole numbers from 0 to 9",
        ),
        "fewer_images": Fault(
            change(lambda truth: [truth["imlist"].pop(), truth["gnd"][0]["easy"].pop(), truth["gnd"][1]["easy"].pop()]),
            r"9 images in the gallery split, published 10, in .*gnd_roxford5k\.pkl",
        ),
        # labels count the landmarks that there are: a missing one shows in their number
        "label_gap": Fault(
            change(lambda truth: truth["gnd"].__setitem__(2, truth["gnd"][0])),
            r"1 easy in the query split, published 2",
        ),
        "in_two_splits": Fault(
            change(lambda truth: truth["imlist"].__setitem__(8, "n1")),
            r"image .*/jpg/n1\.jpg is there 2 times, in the gallery split",
        ),
        # there is no training: the nearest is a query without its lists
        "class_in_both": Fault(
            change(lambda truth: truth["qimlist"].append("radcliffe_2")),
            r"gnd_roxford5k\.pkl: 4 queries in qimlist, 3 in gnd",
        ),
        "missing_image": Fault(remove("jpg/n0.jpg"), r"image .*/jpg/n0\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("jpg/e2.jpg"), r"image .*/jpg/e2\.jpg: cannot be decoded"),
    },
)
