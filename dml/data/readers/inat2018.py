"""The reader of iNaturalist-2018."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.cells import number_classes
from dml.data.contents import read_list_bytes
from dml.data.layout import Layout, parse_whole_number, read_list_rows
from dml.data.table import ImageTable
from dml.runtime.errors import InputError, check_choice

LAYOUT = Layout(
    name="iNaturalist-2018",
    tree="train_val2018/Plantae/5678/*.jpg, train2018.json and the splits of Smooth-AP, "
    "Inat_dataset_splits/Inaturalist_train_set1.txt and Inaturalist_test_set1.txt",
    page="https://github.com/visipedia/inat_comp/tree/master/2018 and https://github.com/Andrew-Brown1/Smooth_AP",
)
RANKS = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVELS = {"base": ("species", "super_category"), "full": RANKS}
SPLITS = ("train", "test")
SPECIES_COUNT = 8142
CATEGORIES_BYTES = 1 << 23
"""Number of bytes that are enough for the official list of categories."""

Labels = NDArray[np.int64]
Names = tuple[tuple[str, ...], ...]


def read(root: str | Path | None, *, variant: str = "base") -> ImageTable:
    """Read iNaturalist-2018 (Van Horn et al., CVPR 2018) in Smooth-AP's class-disjoint splits (Brown et al., 2020).

    The root holds ``train_val2018/`` and ``Inat_dataset_splits/``. The label of a species is its official id, 0 to
    8141, which is also the name of its folder. Training and test share their coarser classes.

    Args:
        variant: "base" has two levels, the species and the super-category whose folder holds the folder of the species.
            "full" has seven levels, species to kingdom, from ``train2018.json``. The species are told apart by their
            ids and all other taxa by their names, as in HAPPIER's release, whose counts are the published ones. So a
            genus of plants and a genus of birds of the same name are one class.
    """
    check_choice("dataset.reader.variant", variant, LEVELS)
    folder = LAYOUT.root(root)
    lists = {split: LAYOUT.find(folder, f"Inat_dataset_splits/Inaturalist_{split}_set1.txt") for split in SPLITS}
    taxonomy = [LAYOUT.find(folder, "train2018.json")] if variant == "full" else []
    species_indices: dict[str, int] = {}  # index in species_ids, by category and number
    species_ids: list[int] = []
    paths: list[str] = []
    image_species: list[int] = []
    split: list[str] = []
    for name, path in lists.items():
        for place, (top, category, number, image) in read_list_rows(path, 4, separator="/"):
            index = species_indices.setdefault(f"{category}/{number}", len(species_ids))
            if index == len(species_ids):
                species_ids.append(parse_whole_number(number, place, "species", lowest=0, highest=SPECIES_COUNT - 1))
            paths.append(f"{folder}/{top}/{category}/{number}/{image}")
            image_species.append(index)
            split.append(name)
    labels, names = _label_taxa(species_ids, *taxonomy) if taxonomy else _label_categories(species_ids, species_indices)
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=labels[np.array(image_species, dtype=np.int64)],
        split=np.array(split, dtype=np.str_),
        levels=LEVELS[variant],
        names=names,
        source=" and ".join(map(str, [*lists.values(), *taxonomy])),
        is_tree=variant == "base",  # the families of two genera of one name may differ
    )


def _label_categories(ids: list[int], species_folders: Iterable[str]) -> tuple[Labels, Names]:
    """Number the species and their super-categories -> labels (S, 2), and the class names of the two levels."""
    categories, names = number_classes(species_folder.partition("/")[0] for species_folder in species_folders)
    species = tuple(str(number) for number in range(max(ids, default=-1) + 1))
    return np.stack([np.array(ids, dtype=np.int64), categories], axis=1), (species, names)


def _label_taxa(ids: list[int], path: Path) -> tuple[Labels, Names]:
    """Number the species and their taxa at each rank -> labels (S, 7), and the class names of the seven levels."""
    all_lineages = _read_lineages(path)
    if unknown := [number for number in ids if number not in all_lineages]:
        raise InputError(f"{path}: no category with id {unknown[0]}, a species of the lists")
    all_ids = range(max(ids, default=-1) + 1)
    species = tuple(all_lineages[number][0] if number in all_lineages else "" for number in all_ids)
    taxa = [number_classes(all_lineages[number][rank] for number in ids) for rank in range(1, len(RANKS))]
    labels = np.stack([np.array(ids, dtype=np.int64), *(labels for labels, _ in taxa)], axis=1)
    return labels, (species, *(names for _, names in taxa))


def _read_lineages(path: Path) -> dict[int, tuple[str, ...]]:
    """Read the species' taxa from species to kingdom, by id, without the records of images, which take a gigabyte."""
    content = read_list_bytes(path)
    match = re.search(rb'"categories"\s*:\s*(?=\[)', content)
    start = match.end() if match else len(content)
    # The end of the file is tried second, in case the list is longer than the official one.
    for end in (start + CATEGORIES_BYTES, len(content)):
        try:
            categories, _ = json.JSONDecoder().raw_decode(content[start:end].decode("utf-8", "ignore"))
            return {entry["id"]: tuple(str(entry[rank]) for rank in ("name", *RANKS[1:])) for entry in categories}
        except json.JSONDecodeError as error:
            fault = error
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}: a category without {error}, expected id, name and {', '.join(RANKS[1:])}"
            ) from error
    raise InputError(f"{path}: no list of categories that can be read ({fault.msg})")
