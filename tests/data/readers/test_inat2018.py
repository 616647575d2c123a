import json
from pathlib import Path
from typing import Any

import pytest
from trees.inat2018 import LISTS, RANKS, SPECIES, TREE, categories, listed, taxonomy
from trees.tree import edit, write_lines

from dml.data.readers import inat2018
from dml.data.readers.inat2018 import read
from dml.data.table import find_faults, hold_out_classes, load
from dml.runtime.errors import InputError

LINES = [*listed("train"), *listed("test")]


def test_the_rows_are_those_of_the_lists_in_their_order(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    for variant in ("base", "full"):
        table = read(tmp_path, variant=variant)
        assert table.paths.tolist() == [f"{tmp_path}/{line}" for line in LINES]
        assert table.split.tolist() == ["train"] * 9 + ["test"] * 6
        assert table.labels[:, 0].tolist() == [int(line.split("/")[2]) for line in LINES]


def test_base_has_the_species_and_its_super_category(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "train2018.json").unlink()
    table = read(str(tmp_path))
    assert table.levels == ("species", "super_category")
    assert table.names == (tuple("012345678"), ("Aves", "Insecta", "Plantae"))
    assert [table.names[1][label] for label in table.labels[:, 1]] == [line.split("/")[1] for line in LINES]


def test_full_has_the_seven_ranks_by_their_names(tmp_path: Path) -> None:
    """As HAPPIER's release labels and counts them: genera of one name are one class, whatever is above them."""
    TREE.build(tmp_path)
    table = load(lambda root: read(root, variant="full"), str(tmp_path), name="inat", counts=TREE.counts)
    assert table.levels == ("species", *RANKS[::-1])
    assert table.names[0] == tuple(name for name, *_ in SPECIES.values())
    for level, rank in enumerate(table.levels[1:], 1):
        taxa = [SPECIES[int(line.split("/")[2])][2][RANKS.index(rank)] for line in LINES]
        assert table.names[level] == tuple(sorted(set(taxa)))
        assert [table.names[level][label] for label in table.labels[:, level]] == taxa
    genera_in_families = {*map(tuple, table.labels[:, 1:3].tolist())}
    assert len(genera_in_families) > len(table.names[1])  # Prunella and Pieris are of two families each


def test_genera_of_one_name_in_two_families_stay_one_class(tmp_path: Path) -> None:
    """Also in what a run makes of the table: parts of it, and its labels without gaps."""
    TREE.build(tmp_path)
    table = read(tmp_path, variant="full")
    assert not table.is_tree
    assert not [*find_faults(table, TREE.counts)]
    for part in (table.subset("train").renumber(), hold_out_classes(table, folds=2)):
        assert not [fault for fault in find_faults(part) if "two classes of level" in fault]
    assert read(tmp_path).is_tree


@pytest.mark.parametrize("length", [100, 1 << 20])
@pytest.mark.parametrize("order", [("categories", "images", "info"), ("info", "categories", "images")])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_categories_may_stand_anywhere(
    length: int, order: tuple[str, ...], indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TREE.build(tmp_path)
    expected = read(tmp_path, variant="full")
    contents = taxonomy()
    text = json.dumps({key: contents[key] for key in order}, indent=indent, ensure_ascii=False)
    (tmp_path / "train2018.json").write_text(text.replace("Salvia pratensis", "Sálvia [pratensis]"), encoding="utf-8")
    monkeypatch.setattr(inat2018, "CATEGORIES_BYTES", length)
    table = read(tmp_path, variant="full")
    assert table.labels.tolist() == expected.labels.tolist()
    assert table.names[0][3] == "Sálvia [pratensis]"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"images": []}, "no list of categories that can be read"),
        ({"categories": {"0": "Prunella"}}, "no list of categories that can be read"),
        (
            {"categories": ["Prunella"]},
            "a category without .*expected id, name and genus, family, order, class, phylum",
        ),
        ({"categories": [{"id": 0, "name": "Prunella"}]}, "a category without 'genus', expected id, name and genus"),
        ({"categories": categories()[1:]}, "no category with id 0, a species of the lists"),
        ([], "no list of categories that can be read"),
    ],
)
def test_another_json_file(contents: Any, message: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "train2018.json").write_text(json.dumps(contents))
    with pytest.raises(InputError, match=rf"train2018\.json: {message}"):
        read(tmp_path, variant="full")


def test_full_needs_the_taxonomy(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "train2018.json").unlink()
    with pytest.raises(InputError, match=r"no train2018\.json in it; give the folder of iNaturalist-2018"):
        read(tmp_path, variant="full")


@pytest.mark.parametrize("number", ["8142", "-1", "99999"])
def test_ids_that_there_are_not(number: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit(LISTS["test"], "Insecta/7/", f"Insecta/{number}/")(tmp_path)
    with pytest.raises(InputError, match=rf"test_set1\.txt, line \d+: species '{number}', expected .* from 0 to 8,141"):
        read(tmp_path)


def test_a_species_in_two_super_categories(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit(LISTS["train"], "Aves/1/010+1.jpg", "Insecta/1/x.jpg")(tmp_path)
    parents = r"0 \(Aves\), such as .*Aves/1/.*, and 1 \(Insecta\), such as .*Insecta/1/x\.jpg"
    with pytest.raises(InputError, match=rf"label 1 \(1\) of .* is in two classes of level super_category: {parents}"):
        load(read, str(tmp_path), name="inat")


def test_another_variant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dataset\.reader\.variant=ful: must be base or full"):
        read(tmp_path, variant="ful")


def test_an_empty_list_is_a_fault_of_the_counts(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    for name in LISTS.values():
        write_lines(tmp_path / name, [])
    for variant in ("base", "full"):
        assert len(read(tmp_path, variant=variant)) == 0
