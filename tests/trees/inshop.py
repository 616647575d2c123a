from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, together, write_images, write_lines

LIST = "Eval/list_eval_partition.txt"
HEADER = "image_name item_id evaluation_status"
# (item, of the images' statuses): odd items are for training, of which one has a single image
ITEMS = (
    (1, "train train"),
    (2, "query gallery gallery"),
    (3, "train"),
    (4, "query query gallery"),
    (5, "train train train"),
    (6, "gallery query"),
    (7, "train train"),
    (8, "gallery query"),
    (9, "train train"),
)


def rows() -> list[tuple[str, str, str]]:
    return [
        (f"img/WOMEN/Blouses_Shirts/id_{item:08d}/{i:02d}_{i}_front.jpg", f"id_{item:08d}", status)
        for item, statuses in ITEMS
        for i, status in enumerate(statuses.split(), 1)
    ]


def write_list(path: Path) -> None:
    """The columns are padded, and not all alike."""
    lines = [f"{image:<{70 + i % 3}} {item:<{12 + i % 2}}{status}" for i, (image, item, status) in enumerate(rows())]
    write_lines(path, [str(len(lines)), HEADER, *lines])


def build(root: Path) -> None:
    write_list(root / LIST)
    write_images(root, (image for image, _, _ in rows()))


FOLDER = "WOMEN/Blouses_Shirts"

TREE = Tree(
    dataset="inshop",
    build=build,
    counts={
        "train": {"images": 10, "item": 5},
        "query": {"images": 5, "item": 4},
        "gallery": {"images": 5, "item": 4},
    },
    faults={
        "no_root": Fault(
            remove("."), r"no such folder; .*list_eval_partition\.txt .*img/.*\(https://.*InShopRetrieval\.html\)"
        ),
        "no_list": Fault(remove(LIST), r"no list_eval_partition\.txt or Eval/list_eval_partition\.txt in it"),
        "broken_line": Fault(
            edit(LIST, f"img/{FOLDER}/id_00000003/01_1_front.jpg", ""),
            r"list_eval_partition\.txt, line 8: 'id_00000003 +train', expected 3 columns",
        ),
        "not_a_number": Fault(
            edit(LIST, "^20$", "twenty"),
            r"list_eval_partition\.txt: number of images 'twenty', expected a whole number",
        ),
        "fewer_images": Fault(drop_last_line(LIST), r"list_eval_partition\.txt: 19 images in it, 20 by its first line"),
        # the labels count the items that there are: a missing one shows in their number
        "label_gap": Fault(
            edit(LIST, "(id_00000003/.* )id_00000003", r"\1id_00000001"),
            r"4 item in the train split, published 5, in .*list_eval_partition\.txt",
        ),
        "in_two_splits": Fault(
            edit(LIST, "id_00000002/03_3_front.jpg", "id_00000001/01_1_front.jpg"),
            rf"image .*/img/{FOLDER}/id_00000001/01_1_front\.jpg is there 2 times, in the gallery and train split",
        ),
        "class_in_both": Fault(
            together(*(edit(LIST, f"(id_00000008/{i}.* )id_00000008", r"\1id_00000001") for i in ("01", "02"))),
            r"1 class is in training and in test, such as label 0 \(id_00000001\)",
        ),
        "missing_image": Fault(
            remove(f"img/{FOLDER}/id_00000009/02_2_front.jpg"), r"image .*/id_00000009/02_2_front\.jpg: no such file"
        ),
        "unreadable_image": Fault(
            overwrite(f"img/{FOLDER}/id_00000001/01_1_front.jpg"),
            r"image .*/id_00000001/01_1_front\.jpg: cannot be decoded",
        ),
    },
)
