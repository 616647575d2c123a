"""The reader of In-shop Clothes Retrieval."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dml.data.contents import Edges, name_part, parse_edges
from dml.data.layout import Layout, parse_whole_number, read_list_lines, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import printable

LAYOUT = Layout(
    name="In-shop Clothes Retrieval",
    tree="list_eval_partition.txt (or Eval/list_eval_partition.txt) and the folder img/ or img_highres/",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
)
HEADER = "image_name item_id evaluation_status"
SPLITS = ("train", "query", "gallery")


def read(root: str | Path | None, *, crop: bool = False) -> ImageTable:
    """Read In-shop Clothes Retrieval of DeepFashion (Liu et al., CVPR 2016): a class is an item of clothing.

    Query and gallery have the same items, and training has others. Labels number the items in the order of their ids.
    Some training items have a single image.

    Args:
        root: the folder that holds the images and, directly or in ``Eval/``, the list. The images are in ``img/``
            (256 x 256) or in ``img_highres/``, directly or in ``Img/``; ``img/`` is preferred.
        crop: whether images are cropped to the boxes in ``list_bbox_inshop.txt``, directly or in ``Anno/``. Papers
            take whole images.
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
    boxes: list[Edges] = [()] * len(rows)
    if crop:
        boxes = _read_boxes(folder, images, [image for image, _, _ in rows])
    paths = [f"{images}/{image.removeprefix('img/')}" for image, _, _ in rows]
    return ImageTable(
        paths=np.array([*map(name_part, paths, boxes)]),
        labels=labels.astype(np.int64)[:, None],
        split=np.array([status for _, _, status in rows]),
        levels=("item",),
        names=(tuple(items.tolist()),),
        source=str(path),
    )


def _read_boxes(folder: Path, images: Path, names: Sequence[str]) -> list[Edges]:
    """Return the boxes of images in the folder ``images``."""
    path = LAYOUT.find(folder, "list_bbox_inshop.txt", "Anno/list_bbox_inshop.txt")
    rows = read_list_rows(path, 7, skip=2, header="image_name clothes_type pose_type x_1 y_1 x_2 y_2")
    edges = {cells[0]: parse_edges(cells[3:], place) for place, cells in rows}
    if missing := [name for name in names if name not in edges]:
        raise InputError(f"{path}: no box of {printable(missing[0])}")
    boxes = [edges[name] for name in names]
    if images.name == "img_highres" and (end := max(map(max, filter(None, boxes)), default=0)) <= 256:
        raise InputError(f"{path}: its boxes end at {end}, so they are of img/ (256 x 256), not of {images}")
    return boxes
