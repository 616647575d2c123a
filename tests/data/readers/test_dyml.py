from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import dyml_product, dyml_vehicle
from trees.dyml_vehicle import BENCHMARKS, HEADER, TRAINING
from trees.tree import edit

from dml.data.readers.dyml import _number_ids, read
from dml.data.table import UNKNOWN, ImageTable
from dml.runtime.errors import InputError

LEVELS = ("fine", "middle", "coarse")


@pytest.fixture
def vehicle(tmp_path: Path) -> Path:
    dyml_vehicle.build(tmp_path)
    return tmp_path


def same_classes(labels: list[int], ids: list[int]) -> bool:
    """Whether one is the other under other names."""
    return len(set(zip(labels, ids, strict=True))) == len(set(labels)) == len(set(ids))


def check(table: ImageTable) -> None:
    """The labels of each level are 0, 1..., the test's after the training's."""
    training = table.split == "train"
    for level in range(3):
        train, test = (set(table.labels[of, level].tolist()) - {UNKNOWN} for of in (training, ~training))
        assert train == set(range(len(train)))
        assert test == set(range(len(train), len(train) + len(test)))


def test_training(vehicle: Path) -> None:
    table = read(vehicle, variant="vehicle").subset("train")
    assert table.levels == LEVELS
    assert table.paths.tolist() == [f"{vehicle}/train/imgs/{i}.jpg" for i in range(7)]
    assert set(table.benchmark.tolist()) == {-1}
    for level, ids in enumerate(list(zip(*TRAINING, strict=True))[::-1]):
        assert same_classes(table.labels[:, level].tolist(), list(ids))


@pytest.mark.parametrize("variant", ["vehicle", "animal"])
def test_a_benchmark_is_judged_at_its_level(variant: str, vehicle: Path) -> None:
    table = read(str(vehicle), variant=variant)
    check(table)
    for level, name in enumerate(LEVELS):
        rows = np.flatnonzero(table.benchmark == level)
        query, gallery = BENCHMARKS[name]
        assert table.split[rows].tolist() == ["query"] * len(query) + ["gallery"] * len(gallery)
        assert table.paths[rows].tolist() == [
            f"{vehicle}/bmk_{name}/{split}/{i}.jpg"
            for split, ids in (("query", query), ("gallery", gallery))
            for i in range(len(ids))
        ]
        assert same_classes(table.labels[rows, level].tolist(), query + gallery)
        assert (np.delete(table.labels[rows], level, axis=1) == UNKNOWN).all()


def test_products_are_judged_at_each_level(tmp_path: Path) -> None:
    dyml_product.build(tmp_path)
    table = read(tmp_path, variant="product")
    check(table)
    for level, ids in enumerate(list(zip(*dyml_product.TEST, strict=True))[::-1]):
        rows = np.flatnonzero(table.benchmark == level)
        assert set(table.split[rows].tolist()) == {"test"}
        assert table.paths[rows].tolist() == [f"{tmp_path}/mini-bmk_all_in_one/imgs/{i}.jpg" for i in range(6)]
        assert same_classes(table.labels[rows, level].tolist(), list(ids))


@given(
    st.lists(st.tuples(*[st.integers(0, 5)] * 3), max_size=8),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=8),
)
def test_label_spaces(training: list[tuple[int, ...]], test: list[tuple[int, int]]) -> None:
    ids = np.full((len(test), 3), UNKNOWN)
    for row, (level, number) in enumerate(test):
        ids[row, level] = number
    labels = _number_ids(np.array(training, dtype=np.int64).reshape(-1, 3), ids)
    for level in range(3):
        seen = sorted({row[level] for row in training})
        unseen = sorted({number for of, number in test if of == level})
        expected = [seen.index(row[level]) for row in training]
        expected += [len(seen) + unseen.index(number) if of == level else UNKNOWN for of, number in test]
        assert labels[:, level].tolist() == expected


# the csv files


def test_well_formed_files_give_the_same(vehicle: Path) -> None:
    published = read(vehicle, variant="vehicle")
    for path in vehicle.rglob("*.csv"):
        header = HEADER if path.name == "label.csv" else "fname, labels"
        path.write_text(path.read_text().replace(header, f"{header}\n"))
    assert read(vehicle, variant="vehicle").labels.tolist() == published.labels.tolist()
    for path in vehicle.rglob("*.csv"):
        path.write_text(
            path.read_text().replace(", ", ",").replace("labels", "fine_id" if "fine" in str(path) else "label")
        )
    table = read(vehicle, variant="vehicle")
    assert table.labels.tolist() == published.labels.tolist()
    assert table.paths.tolist() == published.paths.tolist()


def test_columns_go_by_their_names(vehicle: Path) -> None:
    expected = read(vehicle, variant="vehicle").labels.tolist()
    lines = ["fname,fine_id,coarse_id,middle_id"]
    lines += [f"{i}.jpg,{fine},{coarse},{middle}" for i, (coarse, middle, fine) in enumerate(TRAINING)]
    (vehicle / "train" / "label.csv").write_text("\n".join(lines))
    assert read(vehicle, variant="vehicle").labels.tolist() == expected


@pytest.mark.parametrize("place", ["bmk_fine/query/imgs", "bmk_fine/imgs"])
def test_other_places_of_the_images(place: str, vehicle: Path) -> None:
    (vehicle / "bmk_fine" / "query").rename(vehicle / "images")
    (vehicle / place).parent.mkdir(exist_ok=True)
    (vehicle / "images").rename(vehicle / place)
    paths = read(vehicle, variant="vehicle").paths
    assert f"{vehicle}/{place}/2.jpg" in paths
    assert f"{vehicle}/bmk_fine/gallery/2.jpg" in paths
    assert all(Path(path).is_file() for path in paths)


@pytest.mark.parametrize(
    ("name", "pattern", "new", "message"),
    [
        ("train/label.csv", "^fname.*fine_id", "image, label\n", ", line 1: 'image, label', expected the header"),
        ("train/label.csv", "fine_id0.jpg, .*$", "fine_id0.jpg", r", line 1: '0\.jpg', expected 4 columns"),
        ("train/label.csv", ", fine_id0.jpg, 1, 10, 100", "\n0.jpg, 1, 10", ", line 2: no column fine_id or labels"),
        ("train/label.csv", "17, 108", "17, -1", ": line 7, fine_id '-1', expected a whole number from 0"),
        ("bmk_fine/query.csv", "labels0.jpg", "coarse_id0.jpg", ", line 1: no column fine_id or labels among"),
        ("bmk_fine/query.csv", "^1.jpg, 200", "1.jpg, 200, 3", r", line 2: '1\.jpg, 200, 3', expected 2 columns"),
    ],
)
def test_other_files(name: str, pattern: str, new: str, message: str, vehicle: Path) -> None:
    edit(name, pattern, new)(vehicle)
    with pytest.raises(InputError, match=rf"{name}{message}"):
        read(vehicle, variant="vehicle")


def test_missing_folders_and_other_variants(vehicle: Path) -> None:
    (vehicle / "bmk_middle" / "query").rename(vehicle / "bmk_middle" / "queries")
    with pytest.raises(InputError, match="no bmk_middle/query/imgs or bmk_middle/query or bmk_middle/imgs in it; give"):
        read(vehicle, variant="vehicle")
    with pytest.raises(InputError, match=r"dataset\.reader\.variant=car: must be one of vehicle, animal, product"):
        read(vehicle, variant="car")
    with pytest.raises(InputError, match=r"no mini-bmk_all_in_one/label\.csv in it; give the folder of DyML-Product"):
        read(vehicle, variant="product")
