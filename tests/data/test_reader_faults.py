"""Every reader against miniature trees in the official layout, whole and with each of the faults that trees have."""

from functools import lru_cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from trees.tree import FAULTS, FOUND_IN_AN_IMAGE, Tree

from dml.data.images import read_image
from dml.data.table import TRAINING, UNKNOWN, ImageTable
from dml.ops.errors import InputError
from dml.run import build

CONF = Path(__file__).parents[2] / "conf"
MODULES = sorted(path.stem for path in (Path(__file__).parent / "trees").glob("*.py") if path.stem != "tree")
TREES: dict[str, Tree] = {module: import_module(f"trees.{module}").TREE for module in MODULES}


@lru_cache
def composed(dataset: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[f"dataset={dataset}"])


def table(tree: Tree, root: Path | None) -> ImageTable:
    """What a run gets of the tree, all of its training classes in train."""
    config = composed(tree.dataset).copy()
    config.dataset.root = root and str(root)
    config.dataset.counts = tree.counts
    config.dataset.folds = None
    for name, value in tree.arguments.items():
        config.dataset.reader[name] = value
    return build.table(config)


def lists(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".txt", ".csv", ".json", ".mat"))


def read_all(images: ImageTable) -> None:
    for path in images.paths.tolist():
        assert read_image(path).shape[0] == 3


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


def test_no_class_of_training_is_tested(tree: Tree, tmp_path: Path) -> None:
    if not composed(tree.dataset).dataset.disjoint:
        pytest.skip("its classes are the same")
    tree.build(tmp_path)
    images = table(tree, tmp_path)
    training, other = set(), set()
    for label, split in zip(images.labels[:, 0].tolist(), images.split.tolist(), strict=True):
        (training if split in TRAINING else other).add(label)
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
    for split, published in (composed(tree.dataset).dataset.counts or {}).items():
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
