import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trees.tree import Damage, Fault, Tree, overwrite, remove, write_images

DOMAINS = ("cars", "sop", "inshop", "inat", "met", "gldv2", "food2k", "rp2k")
INDEXED = ("inshop", "met", "gldv2")
# (path, class): the ids of classes begin anew in each list. A query of gldv2 has two classes; the index of met is
# its training.
LISTS: dict[str, dict[str, list[tuple[str, Any]]]] = {
    domain: {
        "train": [(f"{domain}/train/{i}.jpg", i // 2) for i in range(4)],
        "val": [(f"{domain}/val/{i}.jpg", i // 2) for i in range(4)],
        "test": [(f"{domain}/test/{i}.jpg", i // 2) for i in range(4)],
    }
    for domain in DOMAINS
}
for name in INDEXED:
    LISTS[name]["index"] = [(f"{name}/index/{i}.jpg", i // 2) for i in range(5)]
LISTS["met"]["index"] = LISTS["met"]["train"]
LISTS["gldv2"]["test"][3] = ("gldv2/test/3.jpg", [0, 2])


def build(root: Path) -> None:
    for domain, lists in LISTS.items():
        for split, images in lists.items():
            path = root / f"info_files/{domain}/{split}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([{"path": image, "class_id": label} for image, label in images]))
            write_images(root / "images", [image for image, _ in images])


def change(name: str, edit: Callable[[Any], object]) -> Damage:
    def damage(root: Path) -> None:
        path = root / "info_files" / name
        entries = json.loads(path.read_text())
        edit(entries)
        path.write_text(json.dumps(entries))

    return damage


TREE = Tree(
    dataset="uned",
    build=build,
    counts={
        "train": {"images": 32, "class": 16, **dict.fromkeys(DOMAINS, 0)},
        "val": {"images": 32, "class": 16, **dict.fromkeys(DOMAINS, 0)},
        "query": {"images": 32, "class": 0, **dict.fromkeys(DOMAINS, 2), "gldv2": 3},
        "gallery": {"images": 34, "class": 1, **dict.fromkeys(DOMAINS, 3), "gldv2": 4},
    },
    faults={
        "no_root": Fault(remove("."), r"no such folder; .*info_files/ with cars/train\.json .*\(https://.*univ_emb/\)"),
        "no_list": Fault(remove("info_files/met/index.json"), r"no info_files/met/index\.json in it"),
        "broken_line": Fault(
            change("sop/val.json", lambda entries: entries[2].pop("path")),
            r"sop/val\.json: entry 2 is .*'class_id': 1.*, expected a path and a class_id",
        ),
        "not_a_number": Fault(
            change("rp2k/train.json", lambda entries: entries[1].update(class_id="tea")),
            r"rp2k/train\.json: entry 1 is .*'tea'.*, expected a path and a class_id",
        ),
        "fewer_images": Fault(
            change("inat/train.json", lambda entries: entries.pop()), r"31 images in the train split, published 32"
        ),
        # labels count the classes that there are: a missing one shows in their number
        "label_gap": Fault(
            change("inshop/train.json", lambda entries: [entry.update(class_id=0) for entry in entries]),
            r"15 class in the train split, published 16",
        ),
        "in_two_splits": Fault(
            change("cars/val.json", lambda entries: entries[0].update(path="cars/train/0.jpg")),
            r"image .*/images/cars/train/0\.jpg is there 2 times, in the train and val split",
        ),
        # the ids of training and test aren't related: the nearest is a list that holds none
        "class_in_both": Fault(
            lambda root: (root / "info_files/food2k/test.json").write_text("[]") and None,
            r"food2k/test\.json: entry 0 is '?\[\]'?, expected a path and a class_id",
        ),
        "missing_image": Fault(remove("images/cars/train/3.jpg"), r"image .*/cars/train/3\.jpg: no such file"),
        "unreadable_image": Fault(overwrite("images/rp2k/test/0.jpg"), r"image .*/rp2k/test/0\.jpg: cannot be decoded"),
    },
)
