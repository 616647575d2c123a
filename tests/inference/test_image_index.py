"""An index of images: exact search against brute force, changes, and saved versions."""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from manifests import seal
from PIL import Image
from small_embedders import SETTINGS, make_model

import dml
from dml.__main__ import dispatch
from dml.data.readers import folder
from dml.data.table import ImageTable
from dml.inference import index_folder
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import list_source
from dml.inference.index_folder import hold_folder
from dml.inference.index_items import IndexItems
from dml.inference.serving.image_search import ImageSearch
from dml.retrieval.vector_index import VectorIndex
from dml.runtime import files
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)


@pytest.fixture
def index(model: ImageEmbedder, photos: Path) -> dml.Index:
    return dml.Index.build(model, photos)


def test_neighbors_are_those_of_brute_force(index: dml.Index, model: ImageEmbedder, photos: Path) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    vectors = model.embed(paths).astype(np.float64)
    scores, found = index.search(paths, k=12)
    products = vectors @ vectors.T
    assert found[:, 0].tolist() == paths
    np.testing.assert_array_equal(found, np.array(paths)[np.argsort(-products, axis=1)])
    np.testing.assert_allclose(scores, -np.sort(-products, axis=1), atol=1e-6)
    for length in (1, 5):
        longer_scores, longer_paths = index.search(length * vectors, k=np.int64(3))
        np.testing.assert_allclose(longer_scores, scores[:, :3], atol=1e-6)
        np.testing.assert_array_equal(longer_paths, found[:, :3])


def test_a_csv_and_a_table_make_the_same_index(model: ImageEmbedder, photos: Path, index: dml.Index) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    listed = photos / "list.csv"
    lines = [f"{Path(path).relative_to(photos)},{Path(path).parent.name}" for path in paths]
    listed.write_text("\n".join(["path,label", *lines]))
    table = ImageTable(
        paths=np.array(paths),
        labels=np.repeat([0, 1], 6)[:, None],
        split=np.array([""] * 12),
        levels=("kind",),
        names=(("cats", "dogs"),),
    )
    for source in (listed, table):
        other = dml.Index.build(model, source)
        assert other.items.labels.tolist() == index.items.labels.tolist() == ["cats"] * 6 + ["dogs"] * 6
        np.testing.assert_array_equal(other.search(paths, k=5)[1], index.search(paths, k=5)[1])
    assert dml.Index.build(model, paths).items.labels.tolist() == [""] * 12


def _write_list(file: Path, photos: Path, images: list[str]) -> Path:
    """Write a list of images without classes, relative to its folder, in the format that its name ends with."""
    shutil.copytree(photos, file.parent, dirs_exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.table({"path": images, "vector": [[0.5]] * len(images), "width": [24] * len(images)}), file)
    else:
        header = {".csv": ["path"], ".tsv": ["id\tpath"], ".txt": []}[file.suffix]
        file.write_text("\n".join([*header, *("7\t" * (file.suffix == ".tsv") + image for image in images)]))
    return file


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.txt", "LIST.TXT", "list.parquet"])
def test_a_list_needs_no_classes(model: ImageEmbedder, photos: Path, tmp_path: Path, name: str) -> None:
    images = ["dogs/07.png", "cats/01.png"]
    file = _write_list(tmp_path / name.lower(), photos, images).rename(tmp_path / name)
    index = dml.Index.build(model, file)
    assert (index.items.paths.tolist(), {*index.items.labels}) == ([f"{tmp_path}/{image}" for image in images], {""})
    np.testing.assert_array_equal(index.search(file, k=1)[1][:, 0], index.items.paths)


def test_a_parquet_list_may_have_classes(photos: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [3, 5], "path": ["dogs/07.png", "cats/01.png"]}), tmp_path / "list.parquet")
    assert list_source(tmp_path / "list.parquet")[1] == ["3", "5"]


def test_what_is_no_path_of_a_file_is_told(index: dml.Index, model: ImageEmbedder) -> None:
    for take in (model.embed, index.search, list_source):
        for url in ("https://a.org/1.jpg", "file:///a.jpg", "HTTPS://A.ORG/1"):
            for images in (url, [url], Path(url), np.array([url])):
                with pytest.raises(InputError, match="a URL"):
                    take(images)
        for empty in ("", Path("")):
            with pytest.raises(InputError, match=r"(?i)path"):
                take(empty)
    for place in ("https://a.org/1.jpg", ""):
        with pytest.raises(InputError):
            folder.read(place)


def test_by_default_a_small_index_gives_all_that_it_has(model: ImageEmbedder, photos: Path) -> None:
    index = dml.Index.build(model, sorted(photos.rglob("*.png"))[:3])
    assert index.search(photos)[1].shape == (12, 3)
    assert dml.Index.build(model, photos).search(photos)[1].shape == (12, 10)


def test_paths_may_stand_in_arrays(index: dml.Index, model: ImageEmbedder) -> None:
    paths = index.items.paths[:4]
    assert paths.dtype == object
    expected = model.embed(paths.tolist())
    for images in (paths, paths.astype(str), paths.reshape(2, 2), [*map(Path, paths)], map(Path, paths)):
        np.testing.assert_array_equal(model.embed(images), expected)
    np.testing.assert_array_equal(index.search(paths, k=1)[1][:, 0], paths.astype(str))
    other = dml.Index.build(model, paths.reshape(2, 2))
    assert other.remove(paths[:2]) == 2
    assert other.upsert(paths) == 4


def test_vectors_may_be_tensors_and_lists(index: dml.Index, model: ImageEmbedder, photos: Path) -> None:
    vectors = model.embed(photos).astype(np.float16).astype(np.float32)
    expected, tensor = index.search(vectors, k=3)[0], torch.from_numpy(vectors)
    half, tuples, arrays = vectors.astype(np.float16).astype(np.float64), tuple(map(tuple, vectors)), [*vectors]
    for given in (tensor, tensor.double().requires_grad_(), half, vectors.tolist(), tuples, arrays, [*tensor]):
        np.testing.assert_array_equal(index.search(given, k=3)[0], expected)
        np.testing.assert_allclose(index.search(given[0], k=3)[0], expected[:1], atol=1e-6)


def test_what_a_transparent_ground_hides_makes_no_difference(model: ImageEmbedder, tmp_path: Path) -> None:
    """The same drawing as a file, as an image of Pillow, and as an array, with other colors where it is transparent."""
    alpha = np.zeros((28, 28), np.uint8)
    alpha[4:20, 6:12] = 255
    images: list[Any] = []
    for hidden in (0, 77):
        gray = np.where(alpha > 0, 30, hidden).astype(np.uint8)
        images += [
            np.dstack([gray, gray, gray, alpha]),
            np.dstack([gray, alpha]),
            Image.fromarray(np.dstack([gray, alpha])),
        ]
        images[-1].save(tmp_path / f"{hidden}.png")
        images.append(tmp_path / f"{hidden}.png")
    shown = model.preprocess(np.where(alpha > 0, 30, 255).astype(np.uint8)[..., None])
    for image in images:
        assert torch.equal(model.preprocess(image), shown)
    moved = np.dstack([images[1][..., 0], np.roll(alpha, 5)])
    assert not np.array_equal(model.embed([moved]), model.embed(images[:1]))


def test_the_background_is_a_part_of_the_model(model: ImageEmbedder, photos: Path) -> None:
    data = SETTINGS.config["data"]
    models = {
        name: ImageEmbedder(
            model.model, replace(SETTINGS, config={**SETTINGS.config, "data": data | {"background": name}})
        )
        for name in ("white", "#ffffff", "black", "none")
    }
    assert (
        models["white"].fingerprint == models["#ffffff"].fingerprint == model.fingerprint
    )  # as those of older versions
    assert len({made.fingerprint for made in models.values()}) == 3
    clear = np.zeros((28, 28, 4), np.uint8)
    white, black = (models[name].embed([clear]) for name in ("white", "black"))
    np.testing.assert_array_equal(black, models["none"].embed([clear]))
    np.testing.assert_array_equal(white, model.embed([np.full((28, 28, 3), 255, np.uint8)]))
    assert not np.array_equal(white, black)
    assert ImageSearch(dml.Index.build(models["black"], photos)).limits.color == (0, 0, 0)  # for uploads too


def test_no_image_gets_the_number_of_one_that_was_removed(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    """The address of a search by an image of the index would show another one."""
    paths = sorted(map(str, photos.rglob("*.png")))
    index = dml.Index.build(model, paths[:8])
    index.remove(paths[6:8])
    opened = dml.Index.load(index.save(tmp_path / "index"))
    for one in (index, opened):
        one.add(paths[8:])
        assert one.items.ids.tolist() == [*range(6), *range(8, 12)]


def test_images_are_added_replaced_and_removed(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    index = dml.Index.build(model, paths[:8])
    assert index.add(paths[8:]) == 4
    np.testing.assert_array_equal(index.search(paths, 12)[1], dml.Index.build(model, paths).search(paths, 12)[1])
    with pytest.raises(InputError, match=r"00.png and 1 more: in the index already"):
        index.add(paths[:2])
    changed = shutil.copyfile(paths[0], tmp_path / "changed.png")
    index.add([changed])
    shutil.copyfile(paths[5], changed)
    assert index.upsert([changed]) == 1
    assert len(index) == 13
    assert set(index.search(paths[5], k=2)[1][0]) == {paths[5], str(changed)}
    assert index.remove(paths[5]) == 1  # one path stands for a list of one
    assert index.search(paths[5], k=1)[1][0, 0] == str(changed)
    with pytest.raises(InputError, match=r"05.png: not in the index"):
        index.remove([paths[5]])


def test_an_image_without_a_label_keeps_the_one_that_it_has(model: ImageEmbedder, photos: Path) -> None:
    index = dml.Index.build(model, photos)
    assert index.upsert(photos / "cats") == 6  # in this folder they have no label
    assert index.upsert([min(photos.rglob("*.png"))]) == 1
    assert sorted(index.items.labels.tolist()) == ["cats"] * 6 + ["dogs"] * 6


def test_the_pictures_of_saved_models_are_no_images(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    pictured = ImageEmbedder(model.model, replace(SETTINGS, picture=b"a picture"))
    index = dml.Index.build(pictured, tmp_path / "photos")
    folder = index.save(tmp_path / "photos" / "my_index")
    pictured.save_pretrained(tmp_path / "photos" / "my_model")
    assert (index.upsert(tmp_path / "photos"), len(index)) == (12, 12)
    opened = dml.Index.load(folder)
    for _ in range(2):
        opened.save(folder)  # which deletes the files that it was opened from
    assert next(folder.glob("model-*/retrieval.png")).read_bytes() == b"a picture"


def test_an_image_by_a_link_or_another_spelling_is_one_image(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linked").symlink_to(photos)
    one, link = photos / "cats" / "00.png", tmp_path / "one.png"
    link.symlink_to(one)
    monkeypatch.chdir(photos)
    spellings = [str(link), str(tmp_path / "linked" / "cats" / "00.png"), "./dogs/../cats/00.png"]
    index = dml.Index.build(model, photos)
    for spelling in spellings:
        with pytest.raises(InputError, match="in the index already"):
            index.add([spelling])
        index.upsert([spelling])
        assert (len(index), index.items.labels.tolist().count("cats")) == (12, 6)
        assert index.search(one, k=1)[1][0, 0] == (str(one) if ".." in spelling else spelling)
        names = str(one) if ".." in spelling else f"{one} and {spelling}"
        with pytest.raises(InputError, match=f"^{names}: given 2 times; an index holds it once"):
            dml.Index.build(model, [one, spelling])
    assert (index.upsert("."), len(index)) == (12, 12)
    assert index.remove(tmp_path / "linked" / "cats" / "00.png") == 1


def test_thresholds_are_of_classes_that_the_model_has_not_seen(index: dml.Index) -> None:
    metrics = {"threshold/similarity": 0.5, "threshold/nearest_similarity": 0.6, "threshold/wanted_fmr": 0.01}
    calibration = {"threshold/calibration_" + name: value for name, value in (("slope", 9.0), ("intercept", -5.0))}
    calibration["threshold/calibration_prior"] = 0.1
    for train, val, is_seen in (((), (), False), (("cats",), (), False), (("cats",), ("dogs",), True)):
        settings = replace(SETTINGS, metrics=metrics | calibration, class_names=train, val_class_names=val)
        opened = dml.Index(ImageEmbedder(index.model.model, settings), index.vectors, index.items)
        assert opened.is_trained_on == is_seen
        assert (opened.threshold is None, opened.calibration is None) == (is_seen, is_seen)


def test_unreadable_images_are_left_out(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))[:3]
    (tmp_path / "broken.png").write_bytes(b"no image")
    index = dml.Index.build(model, [paths[0], tmp_path / "broken.png", *paths[1:]], on_corrupt="skip")
    assert index.items.paths.tolist() == paths
    np.testing.assert_array_equal(index.search(paths, k=1)[1][:, 0], paths)


def test_a_saved_index_opens_anywhere_and_can_be_changed(index: dml.Index, photos: Path, tmp_path: Path) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    expected = index.search(paths, k=5)
    shutil.move(index.save(tmp_path / "index"), tmp_path / "moved")
    opened = dml.Index.load(tmp_path / "moved")
    np.testing.assert_array_equal(opened.search(paths, k=5)[1], expected[1])
    np.testing.assert_array_equal(opened.search(paths, k=5)[0], expected[0])
    opened.remove(paths[:2])
    opened.save(tmp_path / "moved")
    assert len(list((tmp_path / "moved").iterdir())) == 5  # the old version is gone
    again = dml.Index.load(tmp_path / "moved")
    assert len(again) == 10
    assert again.search(paths[0], k=1)[1][0, 0] != paths[0]
    again.add(paths[:2])
    np.testing.assert_array_equal(again.search(paths, k=5)[1], expected[1])


@pytest.mark.distributed
def test_saves_at_the_same_time_wait_for_each_other(
    index: dml.Index, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = index.save(tmp_path / "index")
    remove_unused_versions = index_folder.remove_unused_versions

    def remove_late(path: Path) -> None:
        time.sleep(0.1)
        remove_unused_versions(path)

    monkeypatch.setattr(index_folder, "remove_unused_versions", remove_late)
    monkeypatch.setattr(files, "GRACE_PERIOD", 0.05)
    with ThreadPoolExecutor(2) as threads:
        for saved in [threads.submit(index.save, folder) for _ in range(2)]:
            saved.result()
        with hold_folder(folder):
            waiting = threads.submit(index.save, folder)
            with pytest.raises(InputError, match=r"index: process \d+ on .* is at work on it; wait for it"):
                hold_folder(folder).__enter__()
            assert not waiting.done()
        waiting.result()
    assert len(dml.Index.load(folder)) == 12
    assert len(list(folder.iterdir())) == 5


def test_a_write_that_fails_leaves_nothing_of_its_own(
    index: dml.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_room(path: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder = tmp_path / "index"
    for _ in range(2):  # a new folder, and one of an index
        before = sorted(folder.glob("*"))
        with monkeypatch.context() as patched:
            patched.setattr(index_folder, "write_description", find_no_room)
            with pytest.raises(InputError, match=f"^{folder}: No space left on device"):
                index.save(folder)
        assert sorted(folder.glob("*")) == before
        index.save(folder)
        assert len(dml.Index.load(folder)) == 12


@pytest.mark.parametrize(
    "step",
    [
        "dml.inference.image_index.load",
        "torch.UntypedStorage.from_file",  # safetensors has the file open, and torch opens it again
        "dml.inference.index_items.IndexItems.read",
    ],
)
def test_an_index_that_is_saved_while_it_is_opened_is_opened_anew(
    index: dml.Index, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = index.save(tmp_path / "index")
    original = resolve_name(step)

    def save_and_go_on(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as restored:
            restored.setattr(step, original)
            if len(index) == 12:
                index.remove([str(min(photos.rglob("*.png")))])
                index.save(folder)
        return original(*arguments, **options)

    monkeypatch.setattr(step, save_and_go_on)
    assert len(dml.Index.load(folder)) == 11


def test_what_killed_saves_left_is_removed(index: dml.Index, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("vectors-0123abcd.faiss", ".items-0123abcd.parquet.7-ab.partial", ".index.json.7-ab.partial", ".lock"):
        (folder / name).write_bytes(b"x")
    for name in ("model-0123abcd", ".model-0123abcd.partial-7", ".model-0123abcd.old-7"):
        (folder / name).mkdir()
    index.save(folder)
    kinds = sorted(path.name.partition("-")[0] for path in folder.iterdir())
    assert kinds == ["README.md", "index.json", "items", "model", "vectors"]
    (folder / "model-notes").mkdir()
    index.save(folder)
    assert (folder / "model-notes").is_dir()


def test_paths_are_absolute(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    monkeypatch.chdir(photos)
    index = dml.Index.build(model, "cats")
    assert index.items.paths.tolist() == paths[:6]
    monkeypatch.chdir(tmp_path)
    assert (index.upsert(photos), len(index)) == (12, 12)
    monkeypatch.chdir(photos)
    assert index.remove(["cats/00.png"]) == 1


def test_an_index_of_another_version_is_one_line(index: dml.Index, tmp_path: Path) -> None:
    folder = index.save(tmp_path / "index")
    for version in ({"format": 3}, {}):
        (folder / "index.json").write_text(json.dumps({"files": {}, **version}))
        with pytest.raises(InputError, match=rf"of format {version.get('format')}, not 5\); build the index again"):
            dml.Index.load(folder)


def test_vectors_of_a_stranger_are_compared_with_the_model_and_the_items(index: dml.Index, tmp_path: Path) -> None:
    folder = index.save(tmp_path / "index")
    (file,) = folder.glob("vectors-*")
    image = str(index.items.paths[0])
    assert dml.Index.load(folder).search(image, k=1)[1][0, 0] == image
    for dimension, ids, line in [
        (8, np.arange(12) + 1, "vectors: one has the id 12, which no image has"),
        (4, np.arange(12), "its vectors, items, adapter and model don't fit"),
    ]:
        vectors = VectorIndex(dimension)
        vectors.add(np.eye(12, dimension, dtype=np.float32), ids)
        vectors.write(file)
        seal(folder / "index.json")
        with pytest.raises(InputError, match=line):
            dml.Index.load(folder).search(image, k=12)


def test_an_empty_index_finds_nothing(index: dml.Index) -> None:
    paths = index.items.paths.tolist()
    assert index.remove(paths) == 12
    with pytest.raises(InputError, match="the index is empty; dml index"):
        index.search(paths[0], k=1)
    assert ImageSearch(index).find_similar(Path(paths[0]).read_bytes(), k=1) == []


def test_vectors_of_another_model_are_refused(index: dml.Index, tmp_path: Path) -> None:
    folder = index.save(tmp_path / "index")
    other = make_model(seed=1)
    with pytest.raises(InputError, match=f"of the model {index.model.fingerprint}, not of {other.fingerprint}"):
        dml.Index.load(folder, model=other)
    assert len(dml.Index.load(folder, model=make_model())) == 12


def test_damage_is_named(index: dml.Index, tmp_path: Path) -> None:
    folder = index.save(tmp_path / "index")
    description = folder / "index.json"
    files = json.loads(description.read_text())["files"]
    for name in (files["vectors"], files["items"]):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-10])
        with pytest.raises(InputError, match=f"{name} is missing, or not as it was written"):
            dml.Index.load(folder)
        (folder / name).write_bytes(content)
    text = description.read_text()
    for pattern, other in [
        ('"model": "model', '"model": "../model'),
        ('"files": ', '"fires": '),
    ]:
        description.write_text(re.sub(pattern, other, text))
        seal(description)
        with pytest.raises(InputError, match=r"index.json: damaged"):
            dml.Index.load(folder)
    description.write_text(text[:50])
    with pytest.raises(InputError, match=r"index.json: damaged"):
        dml.Index.load(folder)
    with pytest.raises(InputError, match="no index there"):
        dml.Index.load(tmp_path)
    with pytest.raises(InputError, match="holds something else"):
        index.save(tmp_path)


def test_mistakes_are_named(index: dml.Index, model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    image, build = next(photos.rglob("*.png")), dml.Index.build
    calls: dict[str, Callable[[], Any]] = {
        "k=0": lambda: index.search(image, k=0),
        "k=2.5": lambda: index.search(image, k=2.5),  # type: ignore[arg-type]
        r"vectors of shape \(1, 5\)": lambda: index.search(np.zeros((1, 5)), k=1),
        "NaN": lambda: index.search(np.full(8, np.nan), k=1),
        "zero": lambda: index.search(np.eye(2, 8, k=-1), k=1),
        "given 2 times": lambda: build(model, [image, image]),
        "there is none": lambda: build(model, []),
        "images: NoneType": lambda: build(model, None),
        ": no path": lambda: build(model, [Image.new("RGB", (4, 4))]),  # type: ignore[list-item]
        "None: no path": lambda: dml.Index.load(None),  # type: ignore[arg-type]
        "no image in it": lambda: build(model, tmp_path),
        "factory=Flatt": lambda: build(model, photos, factory="Flatt"),
        "parameters=nprobe=4": lambda: build(model, photos, parameters="nprobe=4"),
        "IVF64,Flat: 64 cells": lambda: build(model, photos, factory="IVF64,Flat"),
        "no such file; give": lambda: build(model, tmp_path / "gone.png", on_corrupt="skip"),
        "gone.png: no such file": lambda: index.search(tmp_path / "gone.png", k=1),
        "not one of 1": lambda: build(model, [tmp_path / "gone.png"], on_corrupt="skip"),
    }
    for line, call in calls.items():
        with pytest.raises(InputError, match=line):
            call()


def test_a_kind_of_index_is_tried_before_images_are_embedded(
    model: ImageEmbedder, photos: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ImageEmbedder, "embed", None)
    kinds = {"IVF2,Flat": "nprobe=0", "PQ4x2": "", "HNSW8,PQ4": "", "IDMap,Flat": ""}
    for factory, parameters in kinds.items():
        with pytest.raises(InputError, match=f"^factory={factory}"):
            dml.Index.build(model, photos, factory=factory, parameters=parameters)
    assert not capfd.readouterr().err  # FAISS warns of few training vectors


def test_an_index_that_cannot_remove_says_so_before_images_are_embedded(
    model: ImageEmbedder, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    index = dml.Index.build(model, paths[:6], factory="HNSW8")
    assert index.upsert(paths[6:]) == 6
    monkeypatch.setattr(ImageEmbedder, "embed", None)
    with pytest.raises(InputError, match="factory=HNSW8: FAISS can't remove or replace vectors"):
        index.upsert(paths[:3])


def test_an_index_whose_scores_are_no_cosines_judges_nothing(model: ImageEmbedder, photos: Path) -> None:
    calibration = {"calibration_slope": 10.0, "calibration_intercept": -5.0, "calibration_prior": 0.1}
    metrics = {f"threshold/{name}": value for name, value in {"similarity": 0.5, **calibration}.items()}
    calibrated = ImageEmbedder(model.model, replace(SETTINGS, metrics=metrics))
    factories = {"Flat": True, "RR8,Flat": True, "SQ8": True, "PCA4,Flat": False, "PCAR8,Flat": False, "SQ4": False}
    for factory, is_judged in factories.items():
        index = dml.Index.build(calibrated, photos, factory=factory)
        assert (index.threshold == 0.5) is is_judged
        assert (index.calibration is not None) is is_judged
        neighbor = ImageSearch(index).find_similar_to_item(0, k=1)[0]
        assert (neighbor.same is not None) is (neighbor.probability is not None) is is_judged


def test_labels_tell_the_share_of_pairs_of_one_class() -> None:
    """None where no pair is of one class, or all are: a probability would be 0 or 1 at any similarity."""
    for labels, share in [("aabb ", 2 / 6), ("ab", None), ("aa ", None), ("  ", None), ("", None)]:
        items = IndexItems.number([f"{number}.png" for number in range(len(labels))], map(str.strip, labels))
        assert items.same_share == pytest.approx(share)


def test_vectors_that_are_there_are_searched_without_a_model(
    index: dml.Index, model: dml.ImageEmbedder, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    vectors = model.embed(photos)
    paths, labels = index.items.paths.tolist(), index.items.labels.tolist()
    alone = dml.Index.build(vectors=torch.from_numpy(3 * vectors), paths=paths, labels=labels)
    assert (len(alone), repr(alone)) == (len(vectors), f"Index({len(vectors)} images, factory=Flat, no model)")
    for opened in (alone, dml.Index.load(alone.save(tmp_path / "alone"))):
        scores, found = opened.search(vectors, k=3)
        np.testing.assert_allclose(scores, index.search(vectors, k=3)[0], atol=1e-6)
        np.testing.assert_array_equal(found, index.search(vectors, k=3)[1])
        assert opened.items.labels.tolist() == labels
        assert (opened.threshold, opened.calibration) == (None, None)
        for use in (opened.search, opened.upsert):
            with pytest.raises(InputError, match="built of vectors, without a model, so it embeds no image: search by"):
                use(paths[0])
    with pytest.raises(SystemExit):
        dispatch(["serve", str(tmp_path / "alone"), "--port", "0"])
    assert "built of vectors alone; --model MODEL embeds queries" in capfd.readouterr().err
    assert opened.remove(paths[0]) == 1
    with_model = dml.Index.load(tmp_path / "alone", model)
    np.testing.assert_array_equal(with_model.search(paths[3], k=1)[1], [[paths[3]]])
    assert dml.Index.build(model, vectors=vectors, paths=photos).search(paths[3], k=1)[1][0, 0] == paths[3]


def test_vectors_must_fit_their_paths(model: dml.ImageEmbedder) -> None:
    paths = {"paths": ["a.png", "b.png"]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vectors": np.eye(3), **paths}, r"vectors of shape \(3, 3\)"),
        ({"vectors": np.eye(2), **paths, "model": model}, r"expected floats of shape \(2, 8\)"),
        ({"vectors": np.eye(2), **paths, "labels": ["a"]}, "labels: 1 for 2 images"),
        ({"vectors": np.zeros((2, 4)), **paths}, "is zero"),
        ({"vectors": np.eye(2, dtype=int), **paths}, "expected floats"),
        ({"vectors": np.eye(2)}, "give a model and images, or vectors"),
        ({"vectors": np.eye(2), **paths, "batch_size": 2}, "give a model and images, or vectors"),
        ({"source": paths["paths"]}, "give a model and images, or vectors"),
    ]
    for arguments, line in cases:
        with pytest.raises(InputError, match=line):
            dml.Index.build(**arguments)


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat"])
def test_a_slice_is_an_index_of_some_of_the_images(factory: str) -> None:
    vectors, paths = np.random.default_rng(0).normal(size=(20, 8)), [f"/{number}.png" for number in range(20)]
    whole = dml.Index.build(vectors=vectors, paths=paths, labels=range(20), factory=factory, parameters="")
    part = whole[5:15]
    assert (len(whole), len(part), len(part[3])) == (20, 10, 1)
    assert part.items.paths.tolist() == paths[5:15]
    scores, found = part.search(vectors[[7, 16]], k=1)
    assert found[0, 0] == "/7.png"
    assert scores[0, 0] == pytest.approx(1, abs=1e-6)
    assert found[1, 0] in paths[5:15]
    assert whole.search(vectors[16], k=1)[1][0, 0] == "/16.png"
    with pytest.raises(InputError, match="can't remove"):
        dml.Index.build(vectors=vectors, paths=paths, factory="HNSW8")[:3]
    with pytest.raises(IndexError):
        whole[20]
