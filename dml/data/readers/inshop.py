"""The reader of In-shop Clothes Retrieval."""

from pathlib import Path

import numpy as np

from dml.data.layout import Layout, parse_whole_number, read_list_lines, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

LAYOUT = Layout(
    name="In-shop Clothes Retrieval",
    tree="list_eval_partition.txt (or Eval/list_eval_partition.txt) and the folder img/ or img_highres/",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
)
HEADER = "image_name item_id evaluation_status"
SPLITS = ("train", "query", "gallery")


def read(root: str | Path | None) -> ImageTable:
    """Read In-shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016): a class is an item of clothing.

    Query and gallery have the same items, and training has others. Labels number the items in the order of their ids.
    Some training items have a single image.

    Args:
        root: the folder that holds the images and, directly or in ``Eval/``, the list. The images are in ``img/``
            (256 x 256) or in ``img_highres/``, directly or in ``Img/``; ``img/`` is preferred.

    Raises:
        InputError: if the list or the folder of the images is missing, or the list can't be parsed or holds another
            number of images than its first line states.
    """
    folder = LAYOUT.root(root)
    path = LAYOUT.find(folder, "list_eval_partition.txt", "Eval/list_eval_partition.txt")
    images = LAYOUT.find(folder, "img", "img_highres", "Img/img", "Img/img_highres")
    rows = [cells for _, cells in read_list_rows(path, 3, skip=2, header=HEADER)]
    published = parse_whole_number(read_list_lines(path)[0].strip(), path, "number of images")
    if len(rows) != published:
        raise InputError(f"{path}: {len(rows)} images in it, {published} by its first line")
    for image, _, status in rows:
        if status not in SPLITS:
            raise InputError(f"{path}: evaluation_status {status!r} of {image}, expected {', '.join(SPLITS)}")
    items, labels = np.unique([item for _, item, _ in rows], return_inverse=True)
    return ImageTable(
        paths=np.array([f"{images}/{image.removeprefix('img/')}" for image, _, _ in rows]),
        labels=labels.astype(np.int64)[:, None],
        split=np.array([status for _, _, status in rows]),
        levels=("item",),
        names=(tuple(items.tolist()),),
        source=str(path),
    )
