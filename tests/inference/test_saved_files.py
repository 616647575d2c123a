"""Saved models and indexes: damage to a file is noticed, and a killed save leaves the old one or the new one."""

import math
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from small_embedders import SETTINGS, make_model

import dml
from dml.inference.image_embedder import ImageEmbedder
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)

FLIPS = examples(40).max_examples
NOT_READ = ("README.md",)
"""Files for people, which may edit them."""


def make_described_model(seed: int = 0) -> ImageEmbedder:
    """Make a model with everything that describes a trained one."""
    settings = replace(
        SETTINGS,
        metrics={"level0/recall@1": 0.8125, "level0/map@r": math.nan, "threshold/similarity": 0.7},
        training={"step": 3, "stage": 0, "run": "a"},
        class_names=("cat", "Zo\xeb"),
        picture=b"a picture",
    )
    return ImageEmbedder(make_model(seed).model, settings, device="cpu")


def read_model(folder: Path) -> Any:
    model = dml.load(folder, device="cpu")
    vectors = model.embed_batch(torch.full((1, 3, 28, 28), 99, dtype=torch.uint8))
    return repr(model.settings), model.settings.picture, model.heads, model.fingerprint, vectors.tobytes()


def read_index(folder: Path) -> Any:
    index = dml.Index.load(folder, device="cpu")
    scores, positions = index.search_positions(np.eye(8, dtype=np.float32), k=12)
    items = [column.tolist() for column in (index.items.ids, index.items.paths, index.items.labels)]
    vectors = index.vectors
    return items, scores.tobytes(), positions.tolist(), vectors.parameters, vectors.factory, index._next_id


@pytest.fixture(scope="module")
def folders(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("saved"), make_described_model()
    index = dml.Index.build(model, photos, factory="IVF3,Flat", parameters="nprobe=2")
    adapted = dml.Index.build(model, photos)
    adapted.upgrade(make_described_model(1), "procrustes")
    return {
        "model": model.save_pretrained(folder / "model"),
        "index": index.save(folder / "index"),
        "adapted": adapted.save(folder / "adapted"),
    }


def flip_bits(content: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """Flip one bit, anywhere and near both ends -> its number, and the content."""
    drawn = random.Random(seed)
    ends = [*range(80 * 8), *range(max(0, 8 * len(content) - 200 * 8), 8 * len(content))]
    for bit in (*drawn.choices(range(8 * len(content)), k=FLIPS), *drawn.choices(ends, k=FLIPS)):
        flipped = bytearray(content)
        flipped[bit // 8 % len(content)] ^= 1 << bit % 8
        yield bit, bytes(flipped)


@pytest.mark.parametrize("kind", ["model", "index", "adapted"])
@pytest.mark.data_sets
def test_a_flipped_bit_changes_nothing_without_a_word(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    read = read_model if kind == "model" else read_index
    folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
    expected, lines = read(folder), []
    names = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in NOT_READ]
    if kind == "adapted":  # its other files are as those of an index
        names = [path for path in names if path.name.startswith(("adapter", "index"))]
    for number, path in enumerate(names):
        content = path.read_bytes()
        for bit, flipped in flip_bits(content, number):
            path.write_bytes(flipped)
            try:
                assert read(folder) == expected, f"{path.name}, bit {bit}: another content without a word"
            except InputError as error:
                lines.append(str(error))
        path.write_bytes(content)
    assert len(lines) > FLIPS * len(names)
    assert not any("\n" in line for line in lines)
    assert read(folder) == expected


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW8", "PQ4x4", "IVF4,PQ4x4", "PCA4,SQ8"])
def test_a_damaged_file_of_vectors_is_one_line(tmp_path: Path, factory: str) -> None:
    """Without the checksum of index.json: a damaged size asks for any memory."""
    vectors, path = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32), tmp_path / "vectors.faiss"
    index = VectorIndex(8, factory)
    if index.needs_training:
        index.train(vectors)
    index.add(vectors, np.arange(64))
    index.write(path)
    content = path.read_bytes()
    for place in (*range(100), *random.Random(0).choices(range(len(content)), k=FLIPS)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xC1]) + content[place + 1 :])
        with suppress(InputError):
            VectorIndex.read(path, factory)


def run_until(line: int, action: Callable[[], Any], functions: tuple[str, ...]) -> bool:
    """Do something in a copy of this process, which ends before a line of some functions -> whether it was completed.

    Args:
        line: number of the line among those of the functions that the process executes, from 1 on.
        action: what the process does.
        functions: names of functions of dml.
    """
    executed = count(1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name not in functions:
            return None
        if event == "line" and next(executed) == line:
            os._exit(9)
        return trace

    def run() -> None:
        sys.settrace(trace)
        action()
        sys.settrace(None)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode in (0, 9)
    return process.exitcode == 0


@pytest.mark.pipeline
def test_a_save_that_is_killed_leaves_a_model(tmp_path: Path) -> None:
    old, new = make_described_model(0), make_described_model(1)
    first, path = old.save_pretrained(tmp_path / "first"), tmp_path / "folder" / "saved"
    functions = ("save_folder", "replacing_folder", "clean_up", "_delete")
    fingerprints = []
    for line in count(1, 7):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(first, path)
        is_completed = run_until(line, lambda: new.save_pretrained(path), functions)
        fingerprints.append(dml.load(path).fingerprint)
        new.save_pretrained(path)
        assert [left.name for left in path.parent.iterdir()] == ["saved"], f"killed before line {line}"
        assert dml.load(path).fingerprint == new.fingerprint
        if is_completed:
            break
    assert fingerprints == sorted(fingerprints, key=[old.fingerprint, new.fingerprint].index)
    assert len(fingerprints) > 4


@pytest.mark.pipeline
def test_a_save_that_is_killed_leaves_an_index(tmp_path: Path) -> None:
    """Without a model, whose folder is replaced as above: what traces the lines would slow it down a hundred times."""
    paths, path = [f"/photos/{number}.png" for number in range(12)], tmp_path / "index"
    old = dml.Index.build(vectors=np.eye(12, dtype=np.float32), paths=paths)
    new, sizes = old[1:], []
    functions = ("write", "write_version", "write_description", "replacing", "remove_unused_versions")
    for line in count(1, 6):
        shutil.rmtree(path, ignore_errors=True)
        old.save(path)
        is_completed = run_until(line, lambda: new.save(path), functions)
        sizes.append(len(dml.Index.load(path)))
        new.save(path)
        assert len(list(path.iterdir())) == 4, f"killed before line {line}"
        assert len(dml.Index.load(path)) == 11
        if is_completed:
            break
    assert sizes == sorted(sizes, reverse=True)
    assert {*sizes} == {11, 12}
    assert len(sizes) > 10
