from pathlib import Path

import numpy as np

from dml.data.layout import Layout, rows_of, whole_number
from dml.data.table import ImageTable

LAYOUT = Layout(
    name="Stanford Online Products",
    tree="Ebay_train.txt, Ebay_test.txt and the folders bicycle_final/ to toaster_final/",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
)
HEADER = "image_id class_id super_class_id path"


def read(root: str | Path | None) -> ImageTable:
    """Stanford Online Products (Song et al., CVPR 2016): photographs of products for sale, of 12 kinds.

    A class is a product and goes by its official id; a super-class is a kind and goes by its folder's name. Some
    products have fewer images than a sampler may ask for, and the kinds are the same in training and test.

    Args:
        root: the folder with ``Ebay_train.txt`` and ``Ebay_test.txt``.

    Raises:
        InputError: if a list is missing or can't be parsed.
    """
    folder = LAYOUT.root(root)
    lists = {split: LAYOUT.find(folder, f"Ebay_{split}.txt") for split in ("train", "test")}
    paths: list[str] = []
    labels: list[tuple[int, int]] = []
    split: list[str] = []
    kinds: dict[int, str] = {}
    for name, path in lists.items():
        for _, product, kind, image in rows_of(path, 4, skip=1, header=HEADER):
            paths.append(f"{folder}/{image}")
            labels.append((whole_number(product, path, "class_id") - 1, whole_number(kind, path, "super_class_id") - 1))
            split.append(name)
            kinds.setdefault(labels[-1][1], image.partition("/")[0].removesuffix("_final"))
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
