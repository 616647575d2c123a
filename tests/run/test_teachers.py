"""Runs that learn from another model."""

import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from configurations import compose, settings_of
from conftest import ONE_HEAD, Here, Refused
from runs import assert_same_run, kill_at, metrics, train

import dml
from dml.data.table import ImageTable
from dml.losses.distillation import TeacherLoss
from dml.run import builders, other_models
from dml.runtime.errors import InputError
from dml.runtime.imports import quiet


@pytest.fixture(scope="module")
def data(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the images, whose cache folder no other test writes to."""
    return Path(shutil.copy(small_emoji, tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that sees images of another size than its students."""
    arguments = [f"dataset.root={data}", *ONE_HEAD, "transform.size=48", "trainer.max_steps=3"]
    return train(tmp_path_factory.mktemp("runs") / "teacher", *arguments)


@pytest.fixture(scope="module")
def arguments(data: Path) -> list[str]:
    return [f"dataset.root={data}", *ONE_HEAD, "trainer.max_steps=4", "trainer.val_check_interval=2"]


@pytest.fixture(scope="module")
def table(arguments: list[str]) -> ImageTable:
    return builders.build_table(settings_of(compose(*arguments))).subset("train").renumber()


def add(arguments: list[str], table: ImageTable, dims: dict[str, int], *overrides: str) -> dict[str, torch.nn.Module]:
    settings = settings_of(compose(*arguments, *overrides))
    return other_models.add_teacher(settings, table, dims, builders.build_losses(settings, dims, table.labels))


def vectors_of(data: Path) -> list[Path]:
    return sorted(data.parent.rglob("features-*.npz"))


def test_the_teacher_sees_each_image_with_its_own_transform(
    arguments: list[str], table: ImageTable, teacher: Path
) -> None:
    term = add(arguments, table, {"H": 8}, f"distill.teacher={teacher}")["H"].terms["teacher"]  # type: ignore[index, union-attr]
    assert isinstance(term, TeacherLoss)
    expected = dml.load(teacher).embed(table.paths.tolist())
    np.testing.assert_allclose(term.vectors, expected, rtol=0, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("choice", ["similarity", "relational", "embedding"])
def test_an_interrupted_run_ends_bit_for_bit_the_same(
    here: Here, arguments: list[str], teacher: Path, data: Path, tmp_path: Path, choice: str
) -> None:
    """The first one computes the vectors, if none of another case has, and the others read them."""
    learning = [*arguments, f"distill={choice}", f"distill.teacher={teacher}", "training.gradient_cache=3"]
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    here("train", *learning, f"hydra.run.dir={whole}")
    stored = {path: path.stat().st_mtime_ns for path in vectors_of(data)}
    kill_at("before last.ckpt is written", 2, *learning, f"hydra.run.dir={folder}")
    here("train", f"resume={folder}")
    assert_same_run(whole, folder)
    assert metrics(folder) == metrics(whole)
    assert stored
    assert {path: path.stat().st_mtime_ns for path in vectors_of(data)} == stored


def test_a_student_of_the_teachers_size_begins_near_its_vectors(
    here: Here, arguments: list[str], table: ImageTable, teacher: Path, tmp_path: Path
) -> None:
    names = table.paths.tolist()
    wanted = dml.load(teacher).embed(names)
    cosines = {}
    for choice in ("embedding", "similarity"):
        learning = [f"distill={choice}", f"distill.teacher={teacher}", "heads.initial=auto", "optimizer.lr=1e-9"]
        here("train", *arguments, *learning, "trainer.max_steps=1", f"hydra.run.dir={tmp_path / choice}")
        cosines[choice] = (dml.load(tmp_path / choice).embed(names) * wanted).sum(axis=1).mean()
    assert cosines["embedding"] > cosines["similarity"] + 0.3, cosines


def test_a_file_of_vectors_is_a_teacher(
    here: Here, arguments: list[str], table: ImageTable, teacher: Path, refused: Refused, tmp_path: Path
) -> None:
    """Its rows are found by the paths of the images, whatever their order is."""
    from dml.inference.embedding_files import make_table

    names = table.paths.tolist()
    vectors = np.random.default_rng(0).normal(size=(len(names), 5)).astype(np.float32)
    order = np.random.default_rng(1).permutation(len(names))
    file = tmp_path / "vectors.parquet"
    pq.write_table(make_table([names[row] for row in order], [""] * len(names), vectors[order], {}), file)
    term = add(arguments, table, {"H": 8}, f"distill.teacher={file}")["H"].terms["teacher"]  # type: ignore[index, union-attr]
    torch.testing.assert_close(term.vectors, torch.nn.functional.normalize(torch.from_numpy(vectors)))
    roots = {"root": str(Path(names[0]).parents[1])}
    pq.write_table(make_table([os.path.relpath(name, roots["root"]) for name in names], names, vectors, roots), file)
    term = add(arguments, table, {"H": 8}, f"distill.teacher={file}")["H"].terms["teacher"]  # type: ignore[index, union-attr]
    torch.testing.assert_close(term.vectors, torch.nn.functional.normalize(torch.from_numpy(vectors)))
    pq.write_table(make_table(names[1:], names[1:], vectors[1:], {}), file)
    line = f"distill.teacher={file}: lacks 1 of {len(names)} training images, such as {names[0]}"
    assert line in refused(*arguments, f"distill.teacher={file}", f"hydra.run.dir={tmp_path / 'run'}")
    file.write_text("no table")
    with pytest.raises(InputError, match="not such a file, or damaged"):
        add(arguments, table, {"H": 8}, f"distill.teacher={file}")


@pytest.mark.parametrize(("bad", "size"), [(None, 4), ([0.0] * 3, -1), ([0.0, math.nan, 0.0, 0.0], -1)])
def test_a_row_of_a_file_that_is_no_vector_is_named(
    arguments: list[str], table: ImageTable, tmp_path: Path, bad: Any, size: int
) -> None:
    vectors: list[Any] = [[float(row)] * 4 for row in range(len(table))]
    vectors[3] = bad
    column = pa.array(vectors, pa.list_(pa.float32(), size))
    file = tmp_path / "vectors.parquet"
    pq.write_table(pa.table({"path": table.paths.tolist(), "vector": column}), file)
    message = f"distill.teacher={file}: not such a file, or damaged (row 3, from 0 on, doesn't hold 4 finite numbers)"
    with pytest.raises(InputError, match=re.escape(message)):
        add(arguments, table, {"H": 8}, f"distill.teacher={file}")


def test_heads_take_their_own_part_if_the_sizes_add_up(arguments: list[str], table: ImageTable, teacher: Path) -> None:
    distill = f"distill.teacher={teacher}"
    whole = add(arguments, table, {"H": 8}, distill)["H"].terms["teacher"].vectors  # type: ignore[index, union-attr]
    for dims, parts in (({"M": 3, "H": 5}, whole.split([3, 5], dim=1)), ({"M": 3, "H": 6}, [whole, whole])):
        found = add(arguments, table, dims, distill)
        for loss, part in zip(found.values(), parts, strict=True):
            unit = torch.nn.functional.normalize(part)
            torch.testing.assert_close(loss.terms["teacher"].vectors, unit)  # type: ignore[index, union-attr]


def test_a_strangers_model_is_refused(arguments: list[str], table: ImageTable, teacher: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(teacher / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["run"]["config"]["model"]["_target_"] = "os.system"
    torch.save(checkpoint, tmp_path / "strange.ckpt")
    line = r"strange.ckpt: model._target_=os.system could run any code, or write anywhere; trust=true if you trust this"
    with pytest.raises(InputError, match=line):
        add(arguments, table, {"H": 8}, f"distill.teacher={tmp_path / 'strange.ckpt'}")


def test_a_pretrained_network_is_a_teacher(arguments: list[str], table: ImageTable) -> None:
    """Of other features than the 8 numbers of the run, which are mapped to them."""
    quiet()
    learning = ["distill.teacher=pretrained:small_cnn", "distill=embedding"]
    term = add(arguments, table.take(np.arange(12)), {"H": 8}, *learning)["H"].terms["teacher"]  # type: ignore[index, union-attr]
    assert term.vectors.shape == (12, len(term.loss.map.weight))
    assert term.loss.map.weight.shape[1] == 8
