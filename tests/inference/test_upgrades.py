"""Upgrades of an index to a new model: what is measured, what is searched, and what a killed upgrade leaves."""

import multiprocessing
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_embedders import SETTINGS, make_model

import dml
from dml.__main__ import dispatch
from dml.inference import index_folder
from dml.inference.image_embedder import ImageEmbedder
from dml.retrieval.adapters import Adapter
from dml.runtime.errors import InputError

pytestmark = pytest.mark.pipeline

COUNT = 24
FACTORIES = ["Flat", "IVF2,Flat", "HNSW8", "SQfp16", "PQ4x4"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four colors with noise, six of each, in a folder for each color."""
    folder, drawn = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, (color, _) in enumerate(product(range(4), range(COUNT // 4))):
        path = folder / f"color{color}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        center = np.array([60, 120, 180])[[color % 3, (color + 1) % 3, color // 3]]
        Image.fromarray((center + drawn.integers(-58, 58, (20, 24, 3))).astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def models() -> tuple[ImageEmbedder, ImageEmbedder]:
    """An old model, and a new one whose vectors are those of the old one, rotated and with some noise."""
    old, new = make_model(0), make_model(0)
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        weight = [*new.model.parameters()][-1]
        noise = torch.randn(*weight.shape, generator=drawn)
        weight.copy_(torch.linalg.qr(noise[:, :8])[0] @ (weight + 0.002 * weight.std() * noise))
    return old, ImageEmbedder(new.model, SETTINGS)


@pytest.fixture
def index(models: tuple[ImageEmbedder, ImageEmbedder], photos: Path) -> dml.Index:
    return dml.Index.build(models[0], photos)


def search(index: dml.Index) -> Any:
    scores, paths = index.search([str(path) for path in index.items.paths[:6]], k=5)
    return scores.tolist(), paths.tolist()


@pytest.mark.parametrize("factory", FACTORIES)
def test_new_queries_search_the_old_vectors_through_the_adapter(
    models: tuple[ImageEmbedder, ImageEmbedder], photos: Path, tmp_path: Path, factory: str
) -> None:
    old, new = models
    index = dml.Index.build(old, photos, factory=factory)
    expected, vectors = index.search(photos, k=3)[1], index.vectors
    report = index.upgrade(new, "procrustes")
    assert index.vectors is vectors
    assert (index.model, index.space, index.adapter) == (new, old.fingerprint, report.adapter)
    assert index.adapter is not None
    assert (index.adapter.source, index.adapter.target) == (new.fingerprint, old.fingerprint)
    opened = dml.Index.load(index.save(tmp_path / "index"))
    for searched in (index, opened, index[: len(index)] if factory == "Flat" else index):
        found = searched.search(photos, k=3)[1]
        assert (found == expected).mean() > (0.9 if factory != "PQ4x4" else 0.5)
        np.testing.assert_array_equal(searched.search(new.embed(photos), k=3)[1], found)
    assert (opened.space, opened.model.fingerprint) == (old.fingerprint, new.fingerprint)
    assert opened.threshold is opened.calibration is None
    with pytest.raises(InputError, match="its vectors are of the model"):
        dml.Index.load(tmp_path / "index", old)
    with pytest.raises(InputError, match="it is being upgraded to"):
        index.upgrade(make_model(3))


def test_images_that_are_added_are_mapped_too(
    models: tuple[ImageEmbedder, ImageEmbedder], index: dml.Index, photos: Path, tmp_path: Path
) -> None:
    index.upgrade(models[1], "procrustes")
    image = shutil.copy(index.items.paths[7], tmp_path / "copy.png")
    index.add([image])
    opened = dml.Index.load(index.save(tmp_path / "index"))
    assert opened.search(image, k=2)[1][0, 0] == str(image)
    assert index.remove([image]) == 1


def test_an_adapter_of_other_models_is_refused(
    models: tuple[ImageEmbedder, ImageEmbedder], index: dml.Index, tmp_path: Path
) -> None:
    index.upgrade(models[1], "procrustes")
    assert index.adapter is not None
    index.adapter = replace(index.adapter, source="another")
    with pytest.raises(InputError, match="its vectors, items, adapter and model don't fit"):
        dml.Index.load(index.save(tmp_path / "index"))


def see(model: ImageEmbedder, train: tuple[str, ...], val: tuple[str, ...] = ()) -> ImageEmbedder:
    """The model as if it had been trained and validated on classes."""
    return ImageEmbedder(model.model, replace(SETTINGS, class_names=train, val_class_names=val))


@pytest.mark.parametrize("has_labels", [True, False])
def test_an_upgrade_is_judged_on_classes_that_the_new_model_has_not_seen(
    photos: Path, tmp_path: Path, has_labels: bool
) -> None:
    """The report is that of an index of the other images alone, by labels or by folders, also through a link."""
    old, new = make_model(0), see(make_model(4), ("color0",), ("color2",))
    (tmp_path / "link").symlink_to(photos)
    paths = sorted(map(str, (tmp_path / "link").rglob("*.png")))
    others = [path for path in paths if "color1" in path or "color3" in path]
    index, alone = dml.Index.build(old, photos if has_labels else paths), dml.Index.build(old, others)
    if has_labels:
        alone.items.labels[:] = [Path(path).parent.name for path in alone.items.paths]
    report, expected = index.upgrade(new, "none", dry_run=True), alone.upgrade(new, "none", dry_run=True)
    assert {*report.rows} == {*expected.rows}
    assert f"among {COUNT // 2} images" in report.notes[0]
    assert report.notes[1].startswith("left out: 12 images")
    assert "left out" not in " ".join(expected.notes)
    assert "left out" not in str(index.upgrade(see(make_model(4), ("color", "olor0")), "none", dry_run=True))


@pytest.mark.parametrize("adapter", ["auto", "procrustes", "none"])
def test_an_upgrade_of_images_that_the_new_model_has_seen_is_not_judged(
    index: dml.Index, adapter: str, tmp_path: Path
) -> None:
    new = see(make_model(4), ("color0", "color1"), ("color2", "color3"))
    report = index.upgrade(dml.load(new.save_pretrained(tmp_path / "new")), adapter)
    kind = {"auto": "affine"}.get(adapter, adapter)
    assert report.verdict == f"what pays can't be told by the 0 images of other classes; {kind} is taken"
    assert (report.rows, report.verdict in str(report)) == ({}, True)
    assert (report.adapter.kind if report.adapter else "none") == kind
    assert (index.space == index.model.fingerprint) == (adapter == "none")
    assert index.model.fingerprint == new.fingerprint


def plain_values(
    query_model: ImageEmbedder, gallery_model: ImageEmbedder, paths: list[str], labels: list[str], queries: list[int]
) -> Any:
    """The mean recall@1 and MAP@R of queries by one model among the vectors of another, computed in loops."""
    values = []
    for query in queries:
        scores = gallery_model.embed(paths) @ query_model.embed(paths[query])[0]
        hits = [labels[image] == labels[query] for image in np.argsort(-scores, kind="stable") if image != query]
        size = sum(hits)
        values.append((hits[0], sum(sum(hits[: k + 1]) / (k + 1) for k in range(size) if hits[k]) / size))
    return np.mean(values, axis=0)


@pytest.mark.parametrize(
    "labels", [[f"{row // 6}" for row in range(COUNT)], [f"a{row % 5}" * (row % 4 > 0) for row in range(COUNT)]]
)
def test_the_report_has_the_values_of_a_plain_search(
    models: tuple[ImageEmbedder, ImageEmbedder], photos: Path, labels: list[str]
) -> None:
    old, new = models[0], make_model(4)
    paths = sorted(map(str, photos.rglob("*.png")))
    index = dml.Index.build(vectors=old.embed(paths), model=old, paths=paths, labels=labels)
    report = index.upgrade(new, seed=3, dry_run=True)
    queries = [query for query in np.random.default_rng((3, 1)).permutation(COUNT)[:5].tolist() if labels[query]]
    assert report.notes[0].startswith(f"{len(queries)} queries among {COUNT} images")
    for row, model in (("old queries, old vectors", old), ("new queries, new vectors", new)):
        found = [cell[0] for cell in report.rows[row].values()]
        np.testing.assert_allclose(found, plain_values(model, model, paths, labels, queries), atol=1e-9)
    assert all(low <= mean <= high for row in report.rows.values() for mean, low, high in row.values())
    adapted = [row for row in report.rows if row.startswith("new queries, old vectors, ")]
    assert [name.rpartition(" ")[2] for name in adapted] == ["procrustes", "affine"]
    last = {row: [*values.values()][-1][0] for row, values in report.rows.items()}
    best = max(adapted, key=last.__getitem__)
    gain = last["new queries, new vectors"] / last["old queries, old vectors"]
    retention = last[best] / last["new queries, new vectors"]
    assert f"retention {retention:.3f} x gain {gain:.3f}" in report.verdict
    assert (report.adapter is not None) == (retention * gain > 1)
    assert all(row in str(report) for row in report.rows)
    assert index.adapter is None
    assert index.upgrade(new, "none", dry_run=True).adapter is None


def test_without_labels_the_new_models_neighbors_are_relevant(
    models: tuple[ImageEmbedder, ImageEmbedder], photos: Path
) -> None:
    old, new = models[0], make_model(4)
    paths = sorted(map(str, photos.rglob("*.png")))
    report = dml.Index.build(old, vectors=old.embed(paths), paths=paths).upgrade(new, seed=3, dry_run=True)

    def nearest(model: ImageEmbedder, query: int) -> set[int]:
        scores = model.embed(paths) @ model.embed(paths[query])[0]
        return {*[image for image in np.argsort(-scores, kind="stable").tolist() if image != query][:10]}

    queries = np.random.default_rng((3, 1)).permutation(COUNT)[:5].tolist()
    for row, model in (("old queries, old vectors", old), ("new queries, new vectors", new)):
        expected = np.mean([len(nearest(model, query) & nearest(new, query)) / 10 for query in queries])
        assert [cell[0] for cell in report.rows[row].values()] == pytest.approx([expected])


def test_without_an_adapter_all_is_embedded_again(
    models: tuple[ImageEmbedder, ImageEmbedder], index: dml.Index, photos: Path
) -> None:
    ids = index.items.ids
    index.upgrade(models[1], "none", dry_run=True)
    assert index.model is models[0]
    index.upgrade(models[1], "none")
    assert (index.space, index.adapter) == (models[1].fingerprint, None)
    assert search(index) == search(dml.Index.build(models[1], photos))
    assert index.items.ids is not ids
    np.testing.assert_array_equal(index.items.ids, ids)


@pytest.mark.parametrize("adapter", ["affine", "none"])
def test_vectors_of_the_new_model_take_the_place_of_images(
    models: tuple[ImageEmbedder, ImageEmbedder], index: dml.Index, photos: Path, adapter: str
) -> None:
    other, vectors = dml.Index.build(models[0], photos), models[1].embed(photos)
    other.upgrade(models[1], adapter)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ImageEmbedder, "embed", None)  # the images may be gone
        index.upgrade(models[1], adapter, vectors=3 * vectors)
    assert index.space == other.space
    np.testing.assert_allclose(search(index)[0], search(other)[0], atol=1e-6)
    assert search(index)[1] == search(other)[1]
    with pytest.raises(InputError, match=r"^vectors of shape \(3, 8\): expected \(24, 8\)"):
        dml.Index.build(models[0], photos).upgrade(models[1], vectors=vectors[:3])


def test_what_cannot_be_upgraded_is_one_line(index: dml.Index, models: tuple[ImageEmbedder, ImageEmbedder]) -> None:
    for call, line in (
        (lambda: index.upgrade(models[0]), "the index is of .* already"),
        (lambda: index.upgrade(models[1], "linear"), "adapter=linear"),
        (lambda: index[:9].upgrade(models[1]), "9 of its images can be read"),
        (lambda: index.upgrade(models[1], batchsize=3), "batchsize"),
    ):
        with pytest.raises((InputError, TypeError), match=line):
            call()


POINTS: dict[str, tuple[Any, str]] = {
    "batch": (ImageEmbedder, "embed_batch"),
    "adapter": (Adapter, "save"),
    "commit": (index_folder, "write_description"),
    "clean-up": (index_folder, "remove_unused_versions"),
    "replace": (dml.Index, "replace_vectors"),
    "write": (dml.Index, "write"),
}
KILLS = [
    *(("batch", 1, False), ("batch", 8, True), ("adapter", 1, True), ("commit", 1, False)),
    *(("commit", 1, True), ("clean-up", 1, False), ("write", 2, False)),
]


def run_command(point: tuple[str, int, bool], *arguments: str) -> int | None:
    """Run ``dml upgrade`` in a copy of this process, which kills itself at a point -> its exit code."""
    name, occurrence, is_after = point
    owner, function_name = POINTS[name]
    function, calls = getattr(owner, function_name), [0]

    def run() -> None:
        os.setsid()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)

        def killing(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == occurrence and not is_after:
                os.killpg(0, signal.SIGKILL)
            result = function(*args, **options)
            if calls[0] == occurrence:
                os.killpg(0, signal.SIGKILL)
            return result

        setattr(owner, function_name, killing)
        dispatch(["upgrade", *arguments])
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("adapter", ["procrustes", "none"])
def test_a_killed_upgrade_leaves_one_space_and_goes_on(
    models: tuple[ImageEmbedder, ImageEmbedder],
    index: dml.Index,
    photos: Path,
    tmp_path: Path,
    adapter: str,
) -> None:
    old, new = models
    saved, first, path = new.save_pretrained(tmp_path / "new"), index.save(tmp_path / "first"), tmp_path / "index"
    answers = {(old.fingerprint, old.fingerprint): search(index)}
    answers[new.fingerprint, new.fingerprint] = search(dml.Index.build(new, photos))
    index.upgrade(new, "procrustes")
    answers[new.fingerprint, old.fingerprint] = search(index)
    arguments = (str(path), str(saved), "--adapter", adapter, "--workers", "0", "--device", "cpu")
    states, count = [], 0
    for point in (
        KILLS if adapter != "none" else [kill for kill in KILLS if kill[0] != "adapter" and kill[1:] != (2, False)]
    ):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(first, path)
        exit_code = run_command(point, *arguments)
        assert exit_code == -signal.SIGKILL, point
        count += 1
        opened = dml.Index.load(path, device="cpu")
        state = opened.model.fingerprint, opened.space
        states.append(state)
        assert search(opened) == answers[state], point
        dispatch(["upgrade", *arguments])
        opened = dml.Index.load(path, device="cpu")
        assert (opened.model.fingerprint, opened.space, len(opened)) == (new.fingerprint, new.fingerprint, COUNT)
        assert search(opened) == answers[new.fingerprint, new.fingerprint], point
        assert sorted(entry.name.partition("-")[0] for entry in path.iterdir()) == [
            "README.md",
            "index.json",
            "items",
            "model",
            "vectors",
        ]
    assert count >= 4
    assert {*states} <= {*answers}
    assert adapter == "none" or len({*states}) >= 2


def test_the_command_prints_the_report_and_what_it_did(
    models: tuple[ImageEmbedder, ImageEmbedder], index: dml.Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> str:
        with suppress(SystemExit):
            dispatch(["upgrade", *map(str, arguments), "--workers", "0"])
        return "".join(capsys.readouterr())

    saved, path = models[1].save_pretrained(tmp_path / "new"), index.save(tmp_path / "index")
    before = {entry.name: entry.stat().st_mtime_ns for entry in path.iterdir()}
    assert "| new queries, old vectors, affine |" in call(path, saved, "--dry-run")
    assert {entry.name: entry.stat().st_mtime_ns for entry in path.iterdir()} == before
    index.upgrade(models[1], "affine")
    index.save(path)
    assert "it is being upgraded to" in call(path, make_model(5).save_pretrained(tmp_path / "third"))
    assert f"{COUNT} images, all embedded again by the model" in call(path)
    assert "already" in call(path, saved)
    assert "no index there" in call(tmp_path / "nowhere", saved)
    assert not (tmp_path / "nowhere").exists()
