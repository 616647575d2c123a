from pathlib import Path

import numpy as np
import pytest
from trees import landmarks_full
from trees.landmarks import GALLERY, QUERIES, TRAINING, TREE, place
from trees.tree import edit, overwrite

from dml.data.readers.landmarks import read
from dml.evaluation.evaluator import evaluate_table
from dml.runtime.errors import InputError


def test_training_images_go_before_the_test(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    images = [image for images in TRAINING.values() for image in images]
    training = table.subset("train")
    assert training.paths.tolist() == [f"{tmp_path}/{place('train', image)}" for image in images]
    assert [table.names[0][label] for label in training.labels[:, 0]] == ["27", "27", "9", "140"]
    assert table.subset("query").paths.tolist() == [f"{tmp_path}/{place('test', image)}" for image in [*QUERIES][:3]]
    listed = [f"{tmp_path}/{place('index', image)}" for image in GALLERY]
    assert table.subset("gallery").paths.tolist() == [*listed, listed[3]]  # image 3 is one of two landmarks


def test_the_positives_of_each_query(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path).subset("query", "gallery")
    vectors = {Path(path).stem: np.random.default_rng(i).normal(size=5) for i, path in enumerate(table.paths.tolist())}
    embeddings = np.stack([vectors[Path(path).stem] for path in table.paths.tolist()])
    values = []
    for query, (positives, _) in [*QUERIES.items()][:3]:
        unit = np.stack([vectors[name] / np.linalg.norm(vectors[name]) for name in GALLERY])
        hits = np.isin(np.argsort(-unit @ vectors[query]), positives)
        values.append(np.mean((np.cumsum(hits) / np.arange(1, 7))[hits]))
    assert evaluate_table(embeddings, table, metrics=["ap"])["level0/ap"] == pytest.approx(np.mean(values), abs=1e-9)


@pytest.mark.parametrize(("usage", "number"), [("Public", 1), ("Private", 2), (None, 3)])
def test_the_parts_of_the_test(usage: str | None, number: int, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    assert len(read(tmp_path, usage=usage).rows("query")) == number


def test_a_query_without_images_has_no_positives(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("retrieval_solution_v2.1.csv", "^(ddd0000000000001,).*", r"\1,Public")(tmp_path)
    table = read(tmp_path).subset("query", "gallery")
    found = evaluate_table(np.random.default_rng(0).normal(size=(len(table), 5)), table, metrics=["ap"])
    assert found["level0/queries_without_positives"] == 1


def test_an_unknown_part(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    with pytest.raises(InputError, match=r"^dataset\.reader\.usage=public: Public or Private$"):
        read(tmp_path, usage="public")


def test_a_part_without_queries(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("retrieval_solution_v2.1.csv", "^(aaa0000000000001,.*),Public", r"\1,Private")(tmp_path)
    with pytest.raises(InputError, match=r"retrieval_solution_v2\.1\.csv: no query in it whose Usage is Public$"):
        read(tmp_path, usage="Public")


def test_a_list_without_a_column(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("index.csv", "^id$", "image")(tmp_path)
    with pytest.raises(InputError, match=r"index\.csv, line 1: 'image', expected the header 'id'$"):
        read(tmp_path)


def test_a_test_without_training(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    (tmp_path / "train_clean.csv").write_text("landmark_id,images\n")
    assert {*read(tmp_path).counts()} == {"query", "gallery"}


def test_all_training_images_are_those_of_the_other_list(tmp_path: Path) -> None:
    """The addresses in it hold commas, and the test is the same."""
    landmarks_full.TREE.build(tmp_path)
    TREE.build(tmp_path)
    clean = read(tmp_path)
    overwrite("train_clean.csv")(tmp_path)
    table = read(tmp_path, clean=False)
    assert table.paths.tolist() == clean.paths.tolist()
    assert table.labels.tolist() == clean.labels.tolist()
    assert table.names == clean.names
