"""Vector databases: what their own libraries find after dml index --to, repeated and pruned uploads, and mistakes."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from small_embedders import write_photos

import dml
from dml.__main__ import dispatch
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.vector_stores import parse_address
from dml.runtime.errors import InputError

pytestmark = pytest.mark.pipeline

pytest_plugins = ("small_embedders",)

Row = tuple[str, str]
"""Path and label."""


def search_qdrant(place: str, name: str, query: NDArray[np.float32], k: int) -> list[Row]:
    from qdrant_client import QdrantClient

    client = QdrantClient(path=place)
    points = client.query_points(name, query=query.tolist(), limit=k).points
    client.close()
    return [(point.payload["path"], point.payload["label"]) for point in points]


def search_lancedb(place: str, name: str, query: NDArray[np.float32], k: int) -> list[Row]:
    import lancedb

    rows = lancedb.connect(place).open_table(name).search(query).distance_type("cosine").limit(k).to_list()
    return [(row["path"], row["label"]) for row in rows]


def search_milvus(place: str, name: str, query: NDArray[np.float32], k: int) -> list[Row]:
    from pymilvus import MilvusClient

    client = MilvusClient(place)
    client.load_collection(name)
    hits = client.search(name, data=[query], limit=k, output_fields=["path", "label"])[0]
    client.close()
    return [(hit["entity"]["path"], hit["entity"]["label"]) for hit in hits]


SEARCHES: dict[str, Callable[..., list[Row]]] = {
    "qdrant": search_qdrant,
    "lancedb": search_lancedb,
    "milvus": search_milvus,
}


class Database(NamedTuple):
    """A database in a test's folder, and the model whose vectors it gets."""

    kind: str
    place: str
    model: ImageEmbedder
    saved: Path

    def upload(self, images: object, *options: object) -> None:
        arguments = ["index", self.saved, images, "--to", f"{self.kind}:{self.place}", "--workers", 0, *options]
        dispatch([str(argument) for argument in arguments])

    def search(self, query: Any, k: int = 50) -> list[Row]:
        name = f"dml_{self.model.fingerprint}"
        return SEARCHES[self.kind](self.place, name, self.model.embed(str(query))[0], k)

    def paths(self) -> list[str]:
        """All paths that the database holds."""
        name = f"dml_{self.model.fingerprint}"
        return sorted(path for path, _ in SEARCHES[self.kind](self.place, name, np.ones(8, np.float32), 50))


@pytest.fixture(scope="module")
def saved(model: ImageEmbedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save_pretrained(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(params=["qdrant", "lancedb", "milvus"])
def database(request: pytest.FixtureRequest, model: ImageEmbedder, saved: Path, tmp_path: Path) -> Database:
    return Database(request.param, str(tmp_path / "vectors.db"), model, saved)


@pytest.fixture
def lance(model: ImageEmbedder, saved: Path, tmp_path: Path) -> Database:
    return Database("lancedb", str(tmp_path / "vectors"), model, saved)


def refusal(capsys: pytest.CaptureFixture[str], call: Callable[[], None]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_database_finds_what_the_exact_index_finds(
    database: Database, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.upload(photos)
    line = f"{database.kind}:{database.place}: 12 images uploaded to dml_{database.model.fingerprint}"
    assert capsys.readouterr().out.splitlines()[-1] == line
    index = dml.Index.build(database.model, photos)
    for photo in sorted(photos.rglob("*.png"))[::5]:
        paths = index.search(str(photo), 5)[1][0].tolist()
        assert database.search(photo, 5) == [(path, Path(path).parent.name) for path in paths]


def test_an_upload_that_is_repeated_replaces_what_is_there(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by another spelling of a path, and through links to a folder and to an image."""
    photos = tmp_path / "photos"
    photos.mkdir()
    first, *_, last = sorted(write_photos(photos, 4).rglob("*.png"))
    (tmp_path / "linked").symlink_to(photos)
    (tmp_path / "one.png").symlink_to(first)
    database.upload(photos)
    shutil.copy(last, first)
    monkeypatch.chdir(photos / "cats")
    for images in ("..", tmp_path / "linked", tmp_path / "one.png"):
        database.upload(images)
        assert len(database.paths()) == 4
    assert {path for path, _ in database.search(last, 2)} == {
        str(tmp_path / "one.png"),
        str(tmp_path / "linked/dogs/03.png"),
    }


def test_pruning_deletes_what_the_folder_lacks_and_nothing_beside_it(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        write_photos(tmp_path / name, 4)
    database.upload(tmp_path / "ab")
    database.upload(tmp_path / "a")
    gone = tmp_path / "a" / "dogs" / "03.png"
    gone.unlink()
    database.upload(tmp_path / "a")
    assert str(gone) in database.paths()
    capsys.readouterr()
    database.upload(tmp_path / "a", "--prune")
    printed = " ".join(capsys.readouterr().out.split())
    assert f"1 of 8 images are deleted, those below {tmp_path / 'a'} that it lacks" in printed
    assert f"3 images uploaded to dml_{database.model.fingerprint}" in printed
    assert database.paths() == sorted(map(str, tmp_path.glob("a*/*/*.png")))


def test_paths_below_a_root_are_pruned_below_it_alone(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, beside = tmp_path / "data", tmp_path / "beside"
    for folder in (root / "a", root / "b", beside):
        folder.mkdir(parents=True)
        write_photos(folder, 2)
    database.upload(beside)
    database.upload(root, "--root", root)
    absolute = sorted(map(str, beside.rglob("*.png")))
    assert database.paths() == [*absolute, "a/cats/00.png", "a/dogs/01.png", "b/cats/00.png", "b/dogs/01.png"]
    for name in ("a", "b"):
        (root / name / "dogs" / "01.png").unlink()
    database.upload(root / "a", "--root", root, "--prune")  # only what is below the folder
    assert database.paths() == [*absolute, "a/cats/00.png", "b/cats/00.png", "b/dogs/01.png"]
    listed = tmp_path / "list.csv"
    listed.write_text(f"path,label\n{root / 'b' / 'cats' / '00.png'},cat\n")
    database.upload(listed, "--root", root, "--prune")
    assert database.paths() == [*absolute, "b/cats/00.png"]
    assert ("b/cats/00.png", "cat") in database.search(root / "b" / "cats" / "00.png", 3)
    line = refusal(capsys, lambda: database.upload(listed, "--prune"))
    assert line == "error: --prune: deletes what a folder lacks; give a folder of images, or --root"


def test_nothing_is_pruned_if_no_image_can_be_read(
    lance: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    for photo in write_photos(tmp_path / "photos", 4).rglob("*.png"):
        lance.upload(photo) if photo.name == "00.png" else photo.write_bytes(b"no image")
    before = lance.paths()
    (tmp_path / "photos" / "cats" / "00.png").unlink()
    line = refusal(capsys, lambda: lance.upload(tmp_path / "photos", "--prune", "--on-corrupt", "skip"))
    assert "not one of 3 could be read" in line
    assert lance.paths() == before
    (tmp_path / "empty").mkdir()
    assert "no image" in refusal(capsys, lambda: lance.upload(tmp_path / "empty", "--root", tmp_path, "--prune"))
    assert lance.paths() == before


def test_odd_names_stay_as_they_are(database: Database, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd" / "[/red] '; DROP"
    folder.mkdir(parents=True)
    names = ["a'b.png", 'a"b".png', "') OR id != ''.png", "äöü 🐈.png", "new\nline.png", "back\\slash.png"]
    for name, photo in zip(names, sorted(photos.rglob("*.png")), strict=False):
        shutil.copyfile(photo, folder / name)
    (folder / "broken.png").write_bytes(b"no image")  # which is left out
    for _ in range(2):
        database.upload(tmp_path / "odd", "--root", tmp_path, "--prune", "--on-corrupt", "skip")
        assert database.paths() == sorted(f"odd/[/red] '; DROP/{name}" for name in names)


def test_a_file_of_milvus_is_opened_again_by_another_process(
    model: ImageEmbedder, saved: Path, photos: Path, tmp_path: Path
) -> None:
    database = Database("milvus", str(tmp_path / "vectors.db"), model, saved)
    arguments = ["index", saved, photos, "--to", f"milvus:{database.place}", "--workers", "0", "--prune"]
    command = [sys.executable, "-m", "dml", *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "0 of 12 images are deleted" in found.stdout
    assert "Traceback" not in found.stderr
    database.upload(photos)
    assert database.paths() == sorted(map(str, photos.rglob("*.png")))


def test_decoding_processes_are_no_copies_of_one_with_a_data_base(
    lance: Database, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy could wait for ever for a lock that a thread of the database's library held."""
    methods, embed = [], ImageEmbedder.embed_in_batches

    def embed_in_batches(self: ImageEmbedder, images: Any, *, start_method: str, **options: Any) -> Any:
        methods.append(start_method)
        return embed(self, images, **options)

    monkeypatch.setattr(ImageEmbedder, "embed_in_batches", embed_in_batches)
    lance.upload(photos)
    assert methods == ["spawn"]


def test_a_process_that_is_started_anew_decodes_the_same(model: ImageEmbedder, photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    batches = [*model.embed_in_batches(paths, batch_size=5, num_workers=1, start_method="spawn")]
    assert [positions for positions, _ in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    np.testing.assert_array_equal(np.concatenate([vectors for _, vectors in batches]), model.embed(paths, batch_size=5))


def test_a_wrong_address_is_one_line(
    saved: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, line in {
        "vectors": "--to vectors: expected KIND:PLACE",
        "qdrnt:x": "--to qdrnt:x: expected KIND:PLACE, such as qdrant:http://localhost:6333; nearest: qdrant",
        "lancedb:": "--to lancedb:: expected KIND:PLACE, such as lancedb:folder",
        "qdrant:http://127.0.0.1:1": "qdrant:http://127.0.0.1:1: ",
        "milvus:vectors": "milvus:vectors: ",
    }.items():
        arguments = ["index", str(saved), str(photos), "--to", address]
        assert refusal(capsys, lambda words=arguments: dispatch(words)).startswith(f"error: {line}")  # type: ignore[misc]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"qdrant_client": "qdrant", "lancedb": "lancedb", "pymilvus": "milvus", "milvus_lite": "milvus"}
    for library, kind in kinds.items():
        monkeypatch.setattr("dml.runtime.errors.find_spec", lambda name, missing=library: name != missing or None)
        with pytest.raises(InputError, match=rf"^{library}: not installed; .*\[{kind}\]"):
            parse_address(f"{kind}:vectors.db")
