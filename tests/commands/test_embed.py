"""``dml embed``: interrupted, continued, and shared by several machines."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from small_embedders import make_model, write_photos
from stored_arrays import stored_arrays

import dml
from dml.__main__ import dispatch
from dml.inference.image_embedder import ImageEmbedder
from dml.runtime import signals

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model().save_pretrained(tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 photographs: five parts of one batch of four, the last one shorter."""
    return write_photos(tmp_path_factory.mktemp("photos"), 18)


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.inference.embedding_files.PART_SIZE", 4)


def embed(model: Path, photos: Path, output: Path, *more: str) -> None:
    dispatch(["embed", str(model), str(photos), "--output", str(output), "--workers", "0", *more])


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as stopped:
        embed(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err.strip()


def test_freed_memory_is_kept_for_the_next_batch(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr("dml.ops.freed_memory.keep_freed_memory", devices.append)
    embed(model, photos, tmp_path / "photos.npz")
    dispatch(["index", str(model), str(photos), "--output", str(tmp_path / "index")])
    assert devices == [torch.device("cpu")] * 2


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each batch that was embedded."""
    sizes: list[int] = []
    embed_batch = ImageEmbedder.embed_batch

    def count(self: ImageEmbedder, images: Any, precision: str = "32") -> Any:
        sizes.append(len(images))
        return embed_batch(self, images, precision)

    monkeypatch.setattr(ImageEmbedder, "embed_batch", count)
    return sizes


def kill_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    embed_in_batches = ImageEmbedder.embed_in_batches

    def stop(self: ImageEmbedder, *arguments: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(embed_in_batches(self, *arguments, **options)):
            if number == batches:
                raise signals.Stopped(143)
            yield batch

    monkeypatch.setattr(ImageEmbedder, "embed_in_batches", stop)


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_killed_command_goes_on(
    model: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    embedded: list[int],
    suffix: str,
) -> None:
    whole, output = tmp_path / f"whole.{suffix}", tmp_path / f"vectors.{suffix}"
    embed(model, photos, whole)
    assert embedded == [4, 4, 4, 4, 2]
    with monkeypatch.context() as patched:
        kill_after(2, patched)
        with pytest.raises(SystemExit) as stopped:
            embed(model, photos, output)
    assert stopped.value.code == 143
    assert capsys.readouterr().err.strip() == "stopped by SIGTERM; the same command goes on"
    assert not output.exists()
    assert len(list((tmp_path / f"vectors.{suffix}.parts").glob("*.parquet"))) == 2
    embedded.clear()
    embed(model, photos, output)
    assert embedded == [4, 4, 2]
    assert f"{output}.parts: goes on, 2 of 5 parts are there" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, output.name}
    if suffix == "npz":
        expected, joined = stored_arrays(whole), stored_arrays(output)
        for name in ("paths", "labels", "vectors", "fingerprint", "geometry"):
            np.testing.assert_array_equal(joined[name], expected[name])
    else:
        assert pq.read_table(output).equals(pq.read_table(whole), check_metadata=True)


def test_paths_are_absolute_or_relative_to_a_root_that_is_written_too(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    (line,) = refusal(capsys, model, Path("cats"), tmp_path / "other.npz", "--root", "dogs").splitlines()
    assert line == f"error: --root {photos}/dogs: cats/00.png isn't in this folder"


def list_embedded(file: Path) -> Any:
    return stored_arrays(file)["paths"] if file.suffix == ".npz" else pq.read_table(file).column("path").to_pylist()


def test_shards_together_are_the_whole(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded: list[int]
) -> None:
    output = tmp_path / "vectors.parquet"
    for number, batches, line in [
        (1, [4, 4, 2], "3 of 5 parts are there; when the other shards are done, the same command without --shard"),
        (2, [4, 4], "5 of 5 parts are there; the same command without --shard joins them"),
    ]:
        embedded.clear()
        embed(model, photos, output, "--shard", f"{number}/2")
        assert embedded == batches
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"{output}.parts: {line}")
        assert not output.exists()
    embedded.clear()
    embed(model, photos, output)
    assert embedded == []
    table = pq.read_table(output)
    assert table.column("path").to_pylist() == sorted(map(str, photos.rglob("*.png")))
    expected = dml.load(model).embed(photos)
    np.testing.assert_array_equal(np.array(table.column("vector").to_pylist(), np.float32), expected)


def test_an_unreadable_image_costs_nothing_of_what_is_done(model: Path, tmp_path: Path, embedded: list[int]) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    write_photos(photos, 10)
    broken = photos / "dogs" / "09.png"
    broken.write_bytes(b"none")
    output = tmp_path / "vectors.npz"
    with pytest.raises(SystemExit):
        embed(model, photos, output)
    embedded.clear()
    embed(model, photos, output, "--on-corrupt", "skip")
    assert embedded == [1]
    assert stored_arrays(output)["paths"].tolist() == sorted(map(str, set(photos.rglob("*.png")) - {broken}))


def test_images_that_an_earlier_command_left_out_are_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    write_photos(photos, 10)
    (photos / "cats" / "00.png").write_bytes(b"none")
    output, parts = tmp_path / "vectors.parquet", tmp_path / "vectors.parquet.parts"
    embed(model, photos, output, "--on-corrupt", "skip", "--shard", "1/2")
    assert refusal(capsys, model, photos, output).splitlines()[-1] == (
        f"error: {parts}/000000.parquet: an earlier command with --on-corrupt skip left out 1 image; give --on-corrupt "
        "skip again, or delete this file, and the same command goes on"
    )
    assert not output.exists()
    embed(model, photos, output, "--on-corrupt", "skip")
    assert pq.read_metadata(output).num_rows == 9


def test_parts_of_a_changed_archive_are_embedded_again(
    model: Path, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive, listed, output = tmp_path / "p.zip", tmp_path / "list.csv", tmp_path / "vectors.npz"
    images = sorted(photos.rglob("*.png"))[:6]
    listed.write_text("path,label\n" + "".join(f"p.zip/{number}.png,a\n" for number in range(6)))
    for order in (images, images[::-1]):
        with ZipFile(archive, "w") as opened:
            for number, image in enumerate(order):
                opened.writestr(f"{number}.png", image.read_bytes())
        embed(model, listed, output, *(["--shard", "1/2"] if order is images else []))
    assert f"{output}.parts: images have changed since; 1 part embedded again" in caplog.text
    np.testing.assert_array_equal(stored_arrays(output)["vectors"], dml.load(model).embed(images[::-1]))


@pytest.mark.parametrize("has_another_size", [True, False])
def test_a_part_is_embedded_again_if_an_image_has_changed(
    has_another_size: bool, model: Path, tmp_path: Path, embedded: list[int]
) -> None:
    photos, output = tmp_path / "photos", tmp_path / "vectors.npz"
    photos.mkdir()
    for number in range(12):
        Image.new("RGB", (20, 20), (20 * number, 0, 99)).save(photos / f"{number:02}.bmp")
    embed(model, photos, output, "--shard", "1/3")
    embed(model, photos, output, "--shard", "2/3")
    changed = photos / "01.bmp"
    times = changed.stat()
    Image.new("RGB", (21 if has_another_size else 20, 20), "white").save(changed)
    if has_another_size:  # as a copy that keeps the time of its source
        os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    embedded.clear()
    embed(model, photos, output)
    assert embedded == [4, 4]  # those of the changed part, and of the third
    vectors = stored_arrays(output)["vectors"]
    np.testing.assert_array_equal(vectors[:4], dml.load(model).embed(sorted(photos.iterdir())[:4]))


def test_a_folder_without_a_part_holds_nobody_up(model: Path, photos: Path, tmp_path: Path) -> None:
    output, broken = tmp_path / "vectors.npz", tmp_path / "broken.png"
    broken.write_bytes(b"none")
    with pytest.raises(SystemExit):
        embed(model, broken, output)
    embed(model, photos, output)
    assert len(stored_arrays(output)["paths"]) == 18


def test_parts_of_something_else_are_refused(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, parts = tmp_path / "vectors.npz", tmp_path / "vectors.npz.parts"
    embed(model, photos, output, "--shard", "1/2")
    other = make_model(seed=1).save_pretrained(tmp_path / "other")
    line = refusal(capsys, other, photos, output)
    fingerprints = f"({make_model().fingerprint}, now {make_model(seed=1).fingerprint})"
    assert line.startswith(f"error: {parts}: begun with another model {fingerprints}; repeat the command as it was")
    assert "another number of images (18, now 9)" in refusal(capsys, model, photos / "cats", output)
    assert "another batch size (4, now 2)" in refusal(capsys, model, photos, output, "--batch-size", "2")
    part = parts / "000000.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-9])
    assert refusal(capsys, model, photos, output).startswith(f"error: {part}: is damaged")
    part.write_bytes((parts / "000001.parquet").read_bytes())
    assert refusal(capsys, model, photos, output) == (
        f"error: {part}: of other images; delete it, and the same command goes on"
    )
    part.unlink()
    (parts / "plan.json").write_text(json.dumps({"format": 1}))
    assert "begun with another version of the files (1, now 3)" in refusal(capsys, model, photos, output)
    (parts / "plan.json").unlink()
    assert "holds something else (000" in refusal(capsys, model, photos, output)


def test_mistakes_are_named(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "vectors.npz"
    for shard in ("0/2", "3/2", "2", "1/", "a/b", "-1/2", "²/3", "1/2/3"):
        assert refusal(capsys, model, photos, output, f"--shard={shard}") == (
            f"error: --shard {shard}: expected I/N with I from 1 to N, such as 2/4 for the second of four"
        )
    assert "the name must end with .parquet or .npz" in refusal(capsys, model, photos, tmp_path / "vectors.csv")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "a\udcff.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    line = refusal(capsys, model, odd, output)
    assert r"a\xff.png' in row 0 of" in line
    assert "isn't UTF-8, as results are; rename the file" in line
    mistyped = photos.with_name(photos.name[:-1])
    assert refusal(capsys, model, mistyped, output) == (
        f"error: {mistyped}: no such file, but there is {photos}; give images, a list or folder of them"
    )
    assert not list(tmp_path.glob("vectors*"))


def test_two_commands_do_not_share_a_shard(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dml.runtime.locks import holding

    output = tmp_path / "vectors.npz"
    embed(model, photos, output, "--shard", "1/2")
    with holding(tmp_path / "vectors.npz.parts" / ".lock-1-of-1"):  # the command without --shard
        assert "is at work on it; wait for it" in refusal(capsys, model, photos, output, "--shard", "1/2")
    with holding(tmp_path / "vectors.npz.parts" / ".lock-2-of-2"):
        embed(model, photos, output, "--shard", "1/2")
        assert "is at work on it; wait for it" in refusal(capsys, model, photos, output, "--shard", "2/2")
        assert "is at work on it; wait for it" in refusal(capsys, model, photos, output)
    embed(model, photos, output)
    assert len(stored_arrays(output)["paths"]) == 18


def test_a_command_that_is_killed_while_it_deletes_its_parts_goes_on(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "vectors.npz"
    unlink, kept = Path.unlink, "000003.parquet"

    def stop(self: Path, missing_ok: bool = False) -> None:
        if self.name == kept:
            raise KeyboardInterrupt
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", stop)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            embed(model, photos, output)
    expected = stored_arrays(output)["vectors"]
    assert {path.name for path in (tmp_path / "vectors.npz.parts").glob("[!.]*")} == {
        "plan.json",
        kept,
        "000004.parquet",
    }
    embed(model, photos, output)
    np.testing.assert_array_equal(stored_arrays(output)["vectors"], expected)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
