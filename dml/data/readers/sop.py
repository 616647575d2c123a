"""The reader of Stanford Online Products."""

from pathlib import Path

import numpy as np

from dml.data.layout import Layout, parse_whole_number, read_list_rows
from dml.data.table import ImageTable

LAYOUT = Layout(
    name="Stanford Online Products",
    tree="Ebay_train.txt, Ebay_test.txt and the folders bicycle_final/ to toaster_final/",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
)
HEADER = "image_id class_id super_class_id path"
PRODUCTS, KINDS = 22_634, 12
"""The largest official ids of classes and of super-classes; the smallest are 1."""


def read(root: str | Path | None) -> ImageTable:
    """Read Stanford Online Products (Song et al., CVPR 2016): photographs of products for sale, of 12 kinds.

    The root holds ``Ebay_train.txt`` and ``Ebay_test.txt``. A class is a product, named by its official id. A
    super-class is a kind, named by its folder. Training and test have the same kinds. Some products have fewer images
    than a sampler may draw from a class.
    """
    folder = LAYOUT.root(root)
    lists = {split: LAYOUT.find(folder, f"Ebay_{split}.txt") for split in ("train", "test")}
    paths: list[str] = []
    labels: list[tuple[int, int]] = []
    split: list[str] = []
    kinds: dict[int, str] = {}
    for name, path in lists.items():
        for place, (_, product, kind, image) in read_list_rows(path, 4, skip=1, header=HEADER):
            paths.append(f"{folder}/{image}")
            product_label = parse_whole_number(product, place, "class_id", lowest=1, highest=PRODUCTS) - 1
            kind_label = parse_whole_number(kind, place, "super_class_id", lowest=1, highest=KINDS) - 1
            labels.append((product_label, kind_label))
            split.append(name)
            kinds.setdefault(kind_label, image.partition("/")[0].removesuffix("_final"))
    columns = np.array(labels, dtype=np.int64).reshape(-1, 2)
    products = columns[:, 0].max(initial=-1) + 1
    return ImageTable(
        paths=np.array(paths),
        labels=columns,
        split=np.array(split),
        levels=("class", "super_class"),
        names=(
            tuple(str(product) for product in range(1, products + 1)),
            tuple(kinds.get(kind, "") for kind in range(max(kinds, default=-1) + 1)),
        ),
        source=" and ".join(map(str, lists.values())),
    )
