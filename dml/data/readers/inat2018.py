import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import Layout, rows_of, whole_number
from dml.data.splits import numbered
from dml.data.table import ImageTable
from dml.ops.errors import InputError

LAYOUT = Layout(
    name="iNaturalist-2018",
    tree="train_val2018/Plantae/5678/*.jpg, train2018.json and the splits of Smooth-AP, "
    "Inat_dataset_splits/Inaturalist_train_set1.txt and Inaturalist_test_set1.txt",
    page="https://github.com/visipedia/inat_comp/tree/master/2018 and https://github.com/Andrew-Brown1/Smooth_AP",
)
RANKS = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
LEVELS = {"base": ("species", "super_category"), "full": RANKS}
SPLITS = ("train", "test")
SPECIES = 8142
LENGTH = 1 << 23

Labels = NDArray[np.int64]
Names = tuple[tuple[str, ...], ...]


def read(root: str | Path | None, *, variant: str = "base") -> ImageTable:
    """iNaturalist-2018 (Van Horn et al., CVPR 2018) in the class-disjoint splits of Smooth-AP (Brown et al., 2020).

    A species goes by its official id, 0 to 8141, which is the name of its folder. The coarser classes are the same
    in training and test.

    Args:
        root: the folder with ``train_val2018/`` and ``Inat_dataset_splits/``.
        variant: "base" has two levels, species and the super-category whose folder holds theirs; "full" has seven,
            species to kingdom, from ``train2018.json``. There a taxon is what all ranks above it say as well: a
            genus of plants and one of birds may share a name.

    Raises:
        InputError: if a list is missing or can't be parsed.
    """
    if variant not in LEVELS:
        raise InputError(f"dataset.reader.variant={variant}: {' or '.join(LEVELS)}")
    folder = LAYOUT.root(root)
    lists = {split: LAYOUT.find(folder, f"Inat_dataset_splits/Inaturalist_{split}_set1.txt") for split in SPLITS}
    taxonomy = [LAYOUT.find(folder, "train2018.json")] if variant == "full" else []
    places: dict[str, int] = {}  # of each species in ids, by category and number
    ids: list[int] = []
    paths: list[str] = []
    rows: list[int] = []
    split: list[str] = []
    for name, path in lists.items():
        for top, category, number, image in rows_of(path, 4, separator="/"):
            place = places.setdefault(f"{category}/{number}", len(ids))
            if place == len(ids):
                ids.append(_id(number, path))
            paths.append(f"{folder}/{top}/{category}/{number}/{image}")
            rows.append(place)
            split.append(name)
    labels, names = _taxa(ids, *taxonomy) if taxonomy else _categories(ids, places)
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=labels[np.array(rows, dtype=np.int64)],
        split=np.array(split, dtype=np.str_),
        levels=LEVELS[variant],
        names=names,
        source=" and ".join(map(str, [*lists.values(), *taxonomy])),
    )


def _id(number: str, path: Path) -> int:
    if not 0 <= (species := whole_number(number, path, "species")) < SPECIES:
        raise InputError(f"{path}: species {number}, the ids are 0 to {SPECIES - 1}")
    return species


def _categories(ids: list[int], places: Iterable[str]) -> tuple[Labels, Names]:
    """The labels (S, 2) and names of species and the categories that their folders stand in."""
    categories, names = numbered(place.partition("/")[0] for place in places)
    species = tuple(str(number) for number in range(max(ids, default=-1) + 1))
    return np.stack([np.array(ids, dtype=np.int64), categories], axis=1), (species, names)


def _taxa(ids: list[int], path: Path) -> tuple[Labels, Names]:
    """The labels (S, 7) and names of species and their taxa at each rank."""
    known = _lineages(path)
    if unknown := [number for number in ids if number not in known]:
        raise InputError(f"{path}: no category with id {unknown[0]}, a species of the lists")
    lineages = [known[number] for number in ids]
    columns = [ids]
    names = [tuple(known[number][-1] if number in known else "" for number in range(max(ids, default=-1) + 1))]
    for depth in range(len(RANKS) - 1, 0, -1):
        taxa = sorted({lineage[:depth] for lineage in lineages})
        labels = {taxon: label for label, taxon in enumerate(taxa)}
        columns.append([labels[lineage[:depth]] for lineage in lineages])
        names.append(tuple(taxon[-1] for taxon in taxa))
    return np.array(columns, dtype=np.int64).T, tuple(names)


def _lineages(path: Path) -> dict[int, tuple[str, ...]]:
    """For each species' id its names from kingdom to species.

    Nothing else of the file is decoded: its record of each image would take a gigabyte.
    """
    content = path.read_bytes()
    found = re.search(rb'"categories"\s*:\s*(?=\[)', content)
    start = found.end() if found else len(content)
    for end in (start + LENGTH, len(content)):  # the latter if they are longer than the official ones
        try:
            categories, _ = json.JSONDecoder().raw_decode(content[start:end].decode("utf-8", "ignore"))
            return {entry["id"]: tuple(str(entry[rank]) for rank in (*RANKS[:0:-1], "name")) for entry in categories}
        except json.JSONDecodeError as error:
            fault = error
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}: a category without {error}, expected id, name and {', '.join(RANKS[1:])}"
            ) from error
    raise InputError(f"{path}: no list of categories that can be read ({fault.msg})")
