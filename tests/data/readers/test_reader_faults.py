"""Every reader against miniature trees in the official layout, whole and with each of the faults that trees have."""

import os
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from configurations import compose, settings_of
from conftest import ROOT
from trees.tree import FAULTS, FOUND_IN_AN_IMAGE, Tree

from dml.data.contents import MAX_LIST_BYTES
from dml.data.image_listing import SUFFIXES
from dml.data.images import ImageLimits, read_image
from dml.data.table import TRAINING_SPLITS, UNKNOWN, ImageTable
from dml.run import builders
from dml.run.settings import Settings
from dml.runtime.errors import InputError

pytestmark = pytest.mark.data_sets

MODULES = sorted(path.stem for path in (ROOT / "tests" / "trees").glob("*.py") if path.stem != "tree")
TREES: dict[str, Tree] = {module: import_module(f"trees.{module}").TREE for module in MODULES}


@cache
def tree_settings(tree: Tree) -> Settings:
    config = compose(f"dataset={tree.dataset}")
    config.dataset.counts = tree.counts
    config.dataset.folds = None
    for name, value in tree.arguments.items():
        config.dataset.reader[name] = value
    return settings_of(config)


def table(tree: Tree, root: Path | None, **data: int) -> ImageTable:
    """What a run gets of the tree, all of its training classes in train."""
    settings = tree_settings(tree)
    dataset = replace(settings.dataset, root=root and str(root))
    return builders.build_table(replace(settings, dataset=dataset, data=replace(settings.data, **data)))


def lists(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".txt", ".csv", ".json", ".mat"))


def read_all(images: ImageTable) -> None:
    for path in images.paths.tolist():
        assert read_image(path).shape[0] == 3


def all_lists(root: Path) -> list[Path]:
    """Every file that a reader may open: all that are neither images, nor a cache of them."""
    no_list = (*SUFFIXES, ".db", ".zip")
    files = [path for path in root.rglob("*") if path.is_file() and ".dml" not in path.parts]
    return sorted(path for path in files if path.suffix.lower() not in no_list)


@pytest.fixture(params=MODULES)
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


def test_a_tree_is_read_as_it_was_built(tree: Tree, tmp_path: Path) -> None:
    tree.build(tmp_path)
    images = table(tree, tmp_path)
    assert images.counts() == tree.counts
    assert all(Path(path).is_relative_to(tmp_path) for path in images.paths.tolist())
    read_all(images)


def test_a_root_in_the_home_folder(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "images").mkdir()
    tree.build(tmp_path / "images")
    images = table(tree, Path("~/images"))
    assert images.counts() == tree.counts
    assert images.paths[0].startswith(f"{tmp_path}/images/")


def refusal(tree: Tree, root: Path) -> str:
    """The error line about a tree."""
    with pytest.raises(InputError) as error:
        table(tree, root)
    return str(error.value)


LISTED = ["csv", "cub200", "dyml_product", "dyml_vehicle", "inat2018", "inat2018_base", "inshop", "sop"]


@pytest.mark.parametrize("name", LISTED)
def test_a_list_in_another_encoding(name: str, tmp_path: Path) -> None:
    """All readers of lists of text tell it in the same words; only dataset=csv has an option for it."""
    TREES[name].build(tmp_path)
    for path in lists(tmp_path):
        if path.suffix in (".txt", ".csv"):
            path.write_bytes(path.read_bytes().rstrip(b"\n") + "\nZoë".encode("cp1252"))
    remedy = "store it in UTF-8 (for dataset=csv, dataset.reader.encoding=cp1252 reads it)"
    assert refusal(TREES[name], tmp_path).endswith(f": not in UTF-8, it seems to be in cp1252; {remedy}")


def test_no_class_of_training_is_tested(tree: Tree, tmp_path: Path) -> None:
    if not compose(f"dataset={tree.dataset}").dataset.disjoint:
        pytest.skip("its classes are the same")
    tree.build(tmp_path)
    images = table(tree, tmp_path)
    training, other = set(), set()
    for label, split in zip(images.labels[:, 0].tolist(), images.split.tolist(), strict=True):
        (training if split in TRAINING_SPLITS else other).add(label)
    assert not (training & other) - {UNKNOWN}


def test_reading_is_deterministic(tree: Tree, tmp_path: Path) -> None:
    tree.build(tmp_path)
    first, second = table(tree, tmp_path), table(tree, tmp_path)
    for column in ("paths", "labels", "split", "benchmark"):
        assert np.array_equal(getattr(first, column), getattr(second, column))
    assert first.names == second.names


def test_lists_may_come_from_windows(tree: Tree, tmp_path: Path) -> None:
    """Their lines end otherwise, and a byte order mark goes before them."""
    tree.build(tmp_path)
    expected = table(tree, tmp_path)
    for path in lists(tmp_path):
        if path.suffix in (".txt", ".csv"):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    images = table(tree, tmp_path)
    assert images.paths.tolist() == expected.paths.tolist()
    assert images.labels.tolist() == expected.labels.tolist()
    assert images.names == expected.names


def test_a_list_without_sense_is_answered_with_one_line(tree: Tree, tmp_path: Path) -> None:
    """Or isn't read at all."""
    tree.build(tmp_path)
    expected = table(tree, tmp_path)
    found = 0
    for path in lists(tmp_path):
        content = path.read_bytes()
        for damaged in (b"", b"\n", content[: len(content) // 2], b"\0" * 200, b"\xff" * 200, b"1\n2\n3\n" * 50):
            path.write_bytes(damaged)
            try:
                assert table(tree, tmp_path).labels.tolist() == expected.labels.tolist()
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017
                found += 1
        path.write_bytes(content)
    assert found or not lists(tmp_path)


def test_published_counts_are_of_splits_and_levels_that_there_are(tree: Tree) -> None:
    for split, published in (compose(f"dataset={tree.dataset}").dataset.counts or {}).items():
        assert set(published) <= set(tree.counts[str(split)])


def test_the_faults_are_all_there(tree: Tree) -> None:
    assert tuple(tree.faults) == FAULTS
    assert sum(fault is None for fault in tree.faults.values()) <= 1


def test_no_root_is_given(tree: Tree) -> None:
    with pytest.raises(InputError, match=r"^dataset\.root: "):
        table(tree, None)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in MODULES for name in FAULTS if TREES[module].faults.get(name)]
)
def test_a_fault_is_answered_with_one_line(module: str, name: str, tmp_path: Path) -> None:
    tree, root = TREES[module], tmp_path / "root"
    root.mkdir()
    tree.build(root)
    fault = tree.faults[name]
    assert fault is not None
    fault.damage(root)
    if name in FOUND_IN_AN_IMAGE:
        images = table(tree, root)
        with pytest.raises(InputError, match=fault.message) as raised:
            read_all(images)
    else:
        with pytest.raises(InputError, match=fault.message) as raised:
            table(tree, root)
    assert "\n" not in str(raised.value)


# what isn't a file, or has an odd name


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "itself", "folder", "gone"])
def test_a_list_that_is_no_file_is_answered_with_one_line(tree: Tree, tmp_path: Path, kind: str) -> None:
    """Or isn't read at all; a pipe or a device would hang who opens it."""
    tree.build(tmp_path)
    expected, found = table(tree, tmp_path), 0
    paths = all_lists(tmp_path)
    for path in paths:
        kept = path.rename(tmp_path.parent / "kept")
        put(path, kind)
        try:
            assert table(tree, tmp_path).labels.tolist() == expected.labels.tolist()
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert path.name in str(error) or kind == "gone"  # noqa: PT017
            found += 1
        path.rmdir() if kind == "folder" else path.unlink(missing_ok=True)
        kept.rename(path)
    assert found or not paths


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "itself", "folder"])
def test_an_image_that_is_no_file_is_answered_with_one_line(tree: Tree, tmp_path: Path, kind: str) -> None:
    tree.build(tmp_path)
    path = next((path for path in map(Path, table(tree, tmp_path).paths) if path.is_file()), None)
    if path is None:
        pytest.skip("its images are in an archive")
    path.unlink()
    put(path, kind)
    with pytest.raises(InputError, match=rf"{path.name}: ") as raised:
        read_all(table(tree, tmp_path))
    assert "\n" not in str(raised.value)


def put(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "gone":
        path.symlink_to(path.name if kind == "itself" else kind)


def test_a_list_that_is_too_large_names_the_option(tree: Tree, tmp_path: Path) -> None:
    tree.build(tmp_path)
    paths = all_lists(tmp_path)
    if not paths:
        pytest.skip("it reads no list")
    with pytest.raises(InputError, match=r": \d[\d,]* bytes, at most 1 are read; data\.max_list_bytes=\d+ reads it$"):
        table(tree, tmp_path, max_list_bytes=1)


ODD_NAMES = ("[/red] [bold]x", "a\x1b[31mb", "$x$ | `y`", "line\nend", "-x%s,'\"{}", "\u202eü😀")


def test_odd_names_are_read(tree: Tree, tmp_path: Path) -> None:
    root = tmp_path.joinpath(*ODD_NAMES)
    root.mkdir(parents=True)
    tree.build(root)
    images = table(tree, root)
    assert images.counts() == tree.counts
    read_all(images)


def test_names_that_are_not_utf8_are_refused(tree: Tree, tmp_path: Path) -> None:
    """No file that holds results could hold them: the report would be lost after the training."""
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    root.mkdir()
    tree.build(root)
    line = r"/caf\\xe9\S*' in row 0 .*isn't UTF-8, .*; rename the file"
    with pytest.raises(InputError, match=line) as raised:
        table(tree, root)
    assert str(raised.value).encode()


def test_the_configuration_states_the_limits_of_the_code() -> None:
    data = compose("dataset=csv").data
    assert ImageLimits.from_settings(data) == ImageLimits()
    assert data.max_list_bytes == MAX_LIST_BYTES
