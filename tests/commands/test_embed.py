"""``dml embed``: what it writes, and what it leaves when it is interrupted."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import Refused
from forks import end_in_fork
from small_embedders import make_model, write_photos
from stored_arrays import stored_arrays

import dml
from dml.__main__ import dispatch
from dml.inference.image_embedder import ImageEmbedder

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model().save_pretrained(tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 photographs: five chunks of one batch of four, the last one shorter."""
    return write_photos(tmp_path_factory.mktemp("photos"), 18)


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.inference.embedding_files.CHUNK", 4)


def embed(model: Path, photos: Path, output: Path, *more: str) -> None:
    dispatch(["embed", str(model), str(photos), "--output", str(output), "--workers", "0", *more])


def stop_after(batches: int, *arguments: Any) -> tuple[int, str]:
    """Embed in a copy of this process, which gets SIGTERM after some batches -> exit code, and what it printed."""
    embed_in_batches = ImageEmbedder.embed_in_batches

    def stop(self: ImageEmbedder, *arguments: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(embed_in_batches(self, *arguments, **options)):
            if number == batches:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    def run() -> None:
        ImageEmbedder.embed_in_batches = stop  # type: ignore[method-assign]
        embed(*arguments)

    return end_in_fork(run)


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_file_holds_what_the_model_embeds(model: Path, photos: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / "made" / f"vectors.{suffix}"
    embed(model, photos, output)
    assert [*map(str, list_embedded(output))] == sorted(map(str, photos.rglob("*.png")))
    loaded = dml.load(model)
    if suffix == "npz":
        arrays = stored_arrays(output)
        vectors, labels, fingerprint = arrays["vectors"], arrays["labels"].tolist(), str(arrays["fingerprint"])
    else:
        table = pq.read_table(output)
        vectors = np.array(table.column("vector").to_pylist(), np.float32)
        labels, fingerprint = table.column("label").to_pylist(), table.schema.metadata[b"fingerprint"].decode()
        assert pq.read_metadata(output).num_row_groups == 5
    np.testing.assert_array_equal(vectors, loaded.embed(photos))
    assert labels == ["cats"] * 9 + ["dogs"] * 9
    assert fingerprint == loaded.fingerprint


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_killed_command_leaves_the_file_that_was_there(
    model: Path, photos: Path, tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"vectors.{suffix}"
    embed(model, photos / "cats", output)
    before = output.read_bytes()
    assert stop_after(2, model, photos, output) == (143, "stopped by SIGTERM\n")
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    assert output.read_bytes() == before


def test_paths_are_absolute_or_relative_to_a_root_that_is_written_too(
    model: Path, photos: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    for suffix in ("npz", "parquet"):
        files = [tmp_path / f"{name}.{suffix}" for name in ("absolute", "rooted")]
        embed(model, Path(), files[0])
        embed(model, Path(), files[1], "--root", ".")
        absolute, rooted = ([*map(str, list_embedded(file))] for file in files)
        assert (absolute, rooted) == ([f"{photos}/{name}" for name in names], names)
    assert pq.read_schema(files[1]).metadata[b"root"] == bytes(photos)
    line = refused(model, Path("cats"), "--output", tmp_path / "other.npz", "--root", "dogs", command="embed")
    assert line == f"error: --root {photos}/dogs: cats/00.png isn't in this folder"


def list_embedded(file: Path) -> Any:
    return stored_arrays(file)["paths"] if file.suffix == ".npz" else pq.read_table(file).column("path").to_pylist()


def test_unreadable_images_are_left_out_on_request(model: Path, tmp_path: Path, refused: Refused) -> None:
    photos, output = tmp_path / "photos", tmp_path / "vectors.npz"
    photos.mkdir()
    write_photos(photos, 10)
    broken = photos / "dogs" / "09.png"
    broken.write_bytes(b"none")
    assert f"image {broken}: cannot be decoded" in refused(model, photos, "--output", output, command="embed")
    assert not output.exists()
    embed(model, photos, output, "--on-corrupt", "skip")
    assert stored_arrays(output)["paths"].tolist() == sorted(map(str, set(photos.rglob("*.png")) - {broken}))


def test_names_that_are_not_utf8_are_refused(model: Path, photos: Path, tmp_path: Path, refused: Refused) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "a\udcff.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    assert r"a\xff.png' in row 0 of" in refused(model, odd, "--output", tmp_path / "vectors.npz", command="embed")
    assert not list(tmp_path.glob("vectors*"))
