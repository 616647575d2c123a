"""Vector databases: what they find, uploads that go on, and models that aren't mixed; each in its embedded mode."""

import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import httpx
import lancedb
import numpy as np
import pytest
from numpy.typing import NDArray
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from qdrant_client.models import PointStruct
from small_embedders import make_model, write_photos

import dml
from dml.__main__ import dispatch
from dml.inference.embedding_files import Shard
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.vector_stores.store_upload import StoredImages, UploadReport, upload_images
from dml.inference.vector_stores.stores import KINDS, StoreAddress
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)

Search = Callable[[str, str, NDArray[np.float32], int], list[list[str]]]


def search_qdrant(place: str, name: str, queries: NDArray[np.float32], k: int) -> list[list[str]]:
    client = QdrantClient(path=place)
    found = [client.query_points(name, query=query.tolist(), limit=k).points for query in queries]
    client.close()
    return [[point.payload["path"] for point in points] for points in found]


def search_lancedb(place: str, name: str, queries: NDArray[np.float32], k: int) -> list[list[str]]:
    table = lancedb.connect(place).open_table(name)
    found = [table.search(query).distance_type("cosine").limit(k).to_list() for query in queries]
    return [[row["path"] for row in rows] for rows in found]


def search_milvus(place: str, name: str, queries: NDArray[np.float32], k: int) -> list[list[str]]:
    client = MilvusClient(place)
    found = client.search(name, data=[*queries], limit=k, output_fields=["path"])
    client.close()
    return [[hit["entity"]["path"] for hit in hits] for hits in found]


SEARCHES: dict[str, Search] = {"qdrant": search_qdrant, "lancedb": search_lancedb, "milvus": search_milvus}


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.pipeline] if kind == "milvus" else []) for kind in KINDS]
)  # Milvus Lite starts a server
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    return StoreAddress.parse(f"{request.param}:{tmp_path / 'vectors.db'}")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that were embedded."""
    names: list[str] = []
    embed_in_batches = ImageEmbedder.embed_in_batches

    def record(self: ImageEmbedder, images: Any, **options: Any) -> Iterator[Any]:
        names.extend(Path(image).name for image in images)
        return embed_in_batches(self, images, **options)

    monkeypatch.setattr(ImageEmbedder, "embed_in_batches", record)
    return names


def test_folders_of_one_name_keep_their_own_images(
    model: ImageEmbedder, address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are absolute, in whichever working folder they were typed."""
    total = 0
    for name in ("a", "b"):
        (tmp_path / name / "photos").mkdir(parents=True)
        write_photos(tmp_path / name / "photos", 2)
        monkeypatch.chdir(tmp_path / name)
        total = upload(model, address, "photos").total
        assert upload(model, address, f"../{name}/photos").unchanged == 2
    assert total == 4
    found = search(address, model.embed(tmp_path / "a" / "photos"), 4)[0]
    assert sorted(found) == sorted(map(str, tmp_path.rglob("*.png")))


def upload(model: ImageEmbedder, address: StoreAddress, source: Any, **options: Any) -> UploadReport:
    return upload_images(model, address, "pictures", source, **options)


def search(address: StoreAddress, queries: NDArray[np.float32], k: int, name: str = "pictures") -> list[list[str]]:
    return SEARCHES[address.kind](address.place, name, queries, k)


def store_class(kind: str) -> Any:
    module, _, name = KINDS[kind].store.partition(".")
    return getattr(import_module(f"dml.inference.vector_stores.{module}"), name)


def kill_after(store: str, batches: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store upload so many batches of four images, and then raise an error."""
    upsert = store_class(store).upsert
    calls: list[int] = []

    def fail(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > batches:
            raise error
        upsert(*arguments)

    monkeypatch.setattr(store_class(store), "upsert", fail)
    monkeypatch.setattr(store_class(store), "batch_size", 4)


def test_it_finds_what_the_exact_index_finds(
    model: ImageEmbedder, photos: Path, address: StoreAddress, embedded: list[str]
) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))
    assert upload(model, address, photos).uploaded == 12
    queries = model.embed(photos)
    assert search(address, queries, 12) == dml.Index.build(model, photos).search(queries, 12)[1].tolist()
    embedded.clear()
    report = upload(model, address, photos)
    assert (report.uploaded, report.unchanged, report.total, embedded) == (0, 12, 12, [])
    assert search(address, queries[:1], 1) == [paths[:1]]


def test_a_killed_upload_goes_on(
    model: ImageEmbedder,
    photos: Path,
    address: StoreAddress,
    monkeypatch: pytest.MonkeyPatch,
    embedded: list[str],
) -> None:
    with monkeypatch.context() as patched:
        kill_after(address.kind, 2, KeyboardInterrupt(), patched)
        with pytest.raises(KeyboardInterrupt):
            upload(model, address, photos)
    embedded.clear()
    report = upload(model, address, photos)
    assert embedded == ["08.png", "09.png", "10.png", "11.png"]
    assert (report.uploaded, report.unchanged, report.total) == (4, 8, 12)
    queries = model.embed(photos)
    assert search(address, queries, 5) == dml.Index.build(model, photos).search(queries, 5)[1].tolist()


def test_changed_and_new_images_are_uploaded(
    model: ImageEmbedder, photos: Path, address: StoreAddress, tmp_path: Path, embedded: list[str]
) -> None:
    copied = shutil.copytree(photos, tmp_path / "photos")
    shutil.move(copied / "dogs", tmp_path / "dogs")
    upload(model, address, copied, root=tmp_path)
    shutil.move(tmp_path / "dogs", copied / "dogs")
    shutil.copyfile(copied / "dogs" / "06.png", copied / "cats" / "01.png")
    embedded.clear()
    report = upload(model, address, copied, root=tmp_path)
    assert embedded == ["01.png", *(f"{number:02}.png" for number in range(6, 12))]
    assert (report.uploaded, report.unchanged, report.total) == (7, 5, 12)
    found = search(address, model.embed(copied / "dogs" / "06.png"), 2)
    assert {*found[0]} == {"photos/cats/01.png", "photos/dogs/06.png"}
    assert upload(model, address, copied / "cats", root=tmp_path).uploaded == 6  # their label was the folder
    with pytest.raises(InputError, match=r"--root .*dogs: .*cats/00.png isn't in this folder"):
        upload(model, address, copied, root=copied / "dogs")


def test_another_model_is_refused_or_replaces(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(model, address, photos)
    other = make_model(seed=1)
    refusal = f"{address}: the collection pictures is of the model {model.fingerprint}, not of {other.fingerprint}; "
    with pytest.raises(InputError, match=f"^{refusal}give another name, or --replace"):
        upload(other, address, photos)
    queries = model.embed(photos)
    expected = dml.Index.build(model, photos).search(queries, 3)[1].tolist()
    with monkeypatch.context() as patched:
        kill_after(address.kind, 1, KeyboardInterrupt(), patched)
        with pytest.raises(KeyboardInterrupt):
            upload(other, address, photos, replace=True)
    assert search(address, queries, 3) == expected  # until the switch, the old model's are found
    report = upload(other, address, photos, replace=True)
    assert (report.uploaded, report.unchanged, report.total) == (8, 4, 12)
    queries = other.embed(photos)
    assert search(address, queries, 3) == dml.Index.build(other, photos).search(queries, 3)[1].tolist()
    if address.kind == "lancedb":
        assert (report.collection, report.replaced) == ("pictures", "pictures")
        assert lancedb.connect(address.place).open_table("pictures").version > 1
    else:
        assert report.collection == f"pictures__{other.fingerprint}"
        assert report.replaced == f"pictures__{model.fingerprint}"
        assert len(search(address, queries, 3, report.replaced)) == 12
    assert upload(other, address, photos).unchanged == 12


def upgrade(model: ImageEmbedder, address: StoreAddress, photos: Path, name: str = "pictures") -> UploadReport:
    return upload_images(model, address, name, None, root=photos, replace=True)


KILLS = [("create", 1), *(("upsert", batch) for batch in (1, 2, 3)), ("list_images", 2), ("switch", 1)]


def kill_at(owner: Any, method: str, occurrence: int, is_after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call of a method be killed before or after it has done its work."""
    function, calls = getattr(owner, method), list[int]()

    def killed(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == occurrence and not is_after:
            raise KeyboardInterrupt
        result = function(*args)
        if len(calls) == occurrence:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, method, killed)


def test_a_killed_upgrade_of_a_collection_answers_in_one_space_and_goes_on(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, embedded: list[str]
) -> None:
    models = {each.fingerprint: each for each in (model, make_model(seed=1))}
    new = [*models.values()][1]
    expected = {fingerprint: search_exactly(each, photos, 12) for fingerprint, each in models.items()}
    monkeypatch.setattr(store_class(address.kind), "batch_size", 4)
    spaces = []

    def check(name: str) -> None:
        with closing(address.open()) as store:
            facts = store.read_facts(store.find(name) or "")
        assert facts is not None
        spaces.append(facts.fingerprint)
        queries = models[facts.fingerprint].embed(photos)
        assert search(address, queries, 12, name) == expected[facts.fingerprint]

    for number, ((method, occurrence), is_after) in enumerate(product(KILLS, (False, True))):
        name = f"pictures_{number}"
        upload_images(model, address, name, photos, root=photos)
        with monkeypatch.context() as patched:
            kill_at(store_class(address.kind), method, occurrence, is_after, patched)
            with pytest.raises(KeyboardInterrupt):
                upgrade(new, address, photos, name)
        check(name)
        embedded.clear()
        report = upgrade(new, address, photos, name)
        batches = {"create": 0, "upsert": occurrence - 1 + is_after}.get(method, 3)
        assert (len(embedded), report.uploaded, report.total) == (12 - 4 * batches, 12 - 4 * batches, 12)
        check(name)
    assert spaces == [*([model.fingerprint, new.fingerprint] * (2 * len(KILLS) - 1)), new.fingerprint, new.fingerprint]


@pytest.mark.parametrize("place", ["old", "new"])
def test_images_that_come_or_go_during_an_upgrade_are_not_lost(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    dogs, new = sorted((photos / "dogs").glob("*.png")), make_model(seed=1)
    upload(model, address, [*dogs[:4]], root=photos)
    upsert = store_class(address.kind).upsert

    def change(store: Any, collection: str, points: Any) -> None:
        upsert(store, collection, points)
        images = StoredImages([str(dogs[5])], ["dogs/11.png"], [""])
        upsert(store, store.find("pictures") if place == "old" else collection, images.points([0], new.embed(dogs[5])))

    with monkeypatch.context() as patched:
        patched.setattr(store_class(address.kind), "upsert", change)
        with pytest.raises(InputError, match=r"pictures.* has changed meanwhile, such as dogs/11.png; what was"):
            upgrade(new, address, photos)
    assert len(search(address, model.embed(dogs[0]), 9)[0]) == 4 + (place == "old")
    if place == "old":
        assert upgrade(new, address, photos).total == 5
        assert search(address, new.embed(dogs[5]), 1) == [["dogs/11.png"]]


def test_the_command_upgrades_a_collection(
    model: ImageEmbedder, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, new = StoreAddress.parse(f"lancedb:{tmp_path / 'vectors'}"), make_model(seed=1)
    upload(model, address, photos, root=photos)
    saved = str(new.save_pretrained(tmp_path / "new"))

    def call(*arguments: str) -> str:
        dispatch(["upgrade", *arguments, "--workers", "0"])
        return capsys.readouterr().out

    options = ("--to", str(address), "--root", str(photos))
    line = "12 images uploaded, 0 were there, 12 in pictures; the vectors of the old model are kept as an older version"
    assert line in call("pictures", saved, *options)
    assert search(address, new.embed(photos), 12) == search_exactly(new, photos, 12)
    assert "0 images uploaded, 12 were there, 12 in pictures" in call("pictures", saved, *options)
    for arguments, refusal in (
        (("nothing", saved, *options), "no collection nothing; dml index --to makes one"),
        (("pictures", *options), "--to: needs NEW_MODEL, and is not with --adapter, --first or --dry-run"),
        (("pictures", saved, *options, "--dry-run"), "--to: needs NEW_MODEL"),
        (("pictures", saved, "--root", "x"), "--root: only with --to"),
    ):
        with pytest.raises(SystemExit, match="2"):
            call(*arguments)
        assert refusal in capsys.readouterr().err


def test_points_of_others_are_told_before_an_upgrade(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    address = StoreAddress.parse(f"qdrant:{tmp_path / 'vectors'}")
    upload(model, address, photos, root=photos)
    client = QdrantClient(path=address.place)
    client.upsert("pictures", [PointStruct(id=1, vector=[1.0] * model.dimension)])
    client.close()
    with pytest.raises(InputError, match="has points without a path, so dml index didn't make them all"):
        upgrade(make_model(seed=1), address, photos)


def test_odd_names_stay_as_they_are(model: ImageEmbedder, photos: Path, address: StoreAddress, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    names = ["a'b.png", 'a"b".png', "') OR id != ''.png", "äöü 🐈.png", "new\nline.png", "back\\slash.png"]
    for number, name in enumerate(names):
        image = folder / "[/red] '; DROP" / name
        image.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sorted(photos.rglob("*.png"))[number], image)
    assert upload(model, address, folder, root=tmp_path).total == len(names)
    assert upload(model, address, folder, root=tmp_path).unchanged == len(names)
    found = search(address, model.embed(folder), 1)
    assert [paths[0] for paths in found] == sorted(f"odd/[/red] '; DROP/{name}" for name in names)


def test_unreadable_images_are_left_out(
    model: ImageEmbedder, photos: Path, address: StoreAddress, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    whole = sorted(map(str, photos.rglob("*.png")))[:3]
    report = upload(model, address, [broken, *whole, tmp_path / "gone.png"], on_corrupt="skip")
    assert (report.uploaded, report.unchanged, report.total) == (3, 0, 3)


def test_decoding_processes_are_no_copies_of_one_with_a_data_base(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy could wait for ever for a lock that a thread of the database's library held."""
    methods = []

    def embed_in_batches(self: ImageEmbedder, images: Any, *, start_method: str, **options: Any) -> Any:
        methods.append(start_method)
        return embed(self, images, **options)

    embed = ImageEmbedder.embed_in_batches
    monkeypatch.setattr(ImageEmbedder, "embed_in_batches", embed_in_batches)
    upload(model, StoreAddress.parse(f"lancedb:{tmp_path / 'vectors'}"), photos)
    assert methods == ["spawn"]


@pytest.mark.pipeline  # a process that is started anew imports for three seconds
def test_a_process_that_is_started_anew_decodes_the_same(model: ImageEmbedder, photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    batches = [*model.embed_in_batches(paths, batch_size=5, num_workers=1, start_method="spawn")]
    assert [positions for positions, _ in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    np.testing.assert_array_equal(np.concatenate([vectors for _, vectors in batches]), model.embed(paths, batch_size=5))


def test_members_of_archives_are_uploaded_once(
    model: ImageEmbedder, photos: Path, address: StoreAddress, tmp_path: Path
) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", photos)
    members = [f"{archive}/{photo.relative_to(photos).as_posix()}" for photo in sorted(photos.rglob("*.png"))]
    assert upload(model, address, members[:4]).uploaded == 4
    report = upload(model, address, members)
    assert (report.uploaded, report.unchanged, report.total) == (8, 4, 12)


def test_a_collection_is_not_replaced_by_an_empty_one(
    model: ImageEmbedder, photos: Path, address: StoreAddress, tmp_path: Path
) -> None:
    upload(model, address, photos)
    with pytest.raises(InputError, match="images: not one of 1 could be read; give readable ones"):
        upload(make_model(seed=1), address, [tmp_path / "gone.png"], replace=True, on_corrupt="skip")
    assert upload(model, address, photos).unchanged == 12


def test_a_collection_of_others_is_left_alone(model: ImageEmbedder, photos: Path, address: StoreAddress) -> None:
    if address.kind == "qdrant":
        client = QdrantClient(path=address.place)
        client.create_collection("pictures", vectors_config={})
        client.close()
    elif address.kind == "lancedb":
        lancedb.connect(address.place).create_table("pictures", [{"id": 1}])
    else:
        other = MilvusClient(address.place)
        other.create_collection("pictures", dimension=8)
        other.close()
    with pytest.raises(InputError, match="dml didn't make the collection pictures; give another name"):
        upload(model, address, photos, replace=True)


LOST = {
    "qdrant": ResponseHandlingException(httpx.ConnectError("connection refused")),
    "lancedb": ConnectionError("connection refused"),
    "milvus": MilvusException(grpc.StatusCode.UNAVAILABLE, "connection refused"),
}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for."""
    seconds: list[float] = []
    monkeypatch.setattr("dml.inference.vector_stores.stores.sleep", seconds.append)
    return seconds


def test_a_lost_connection_is_waited_for(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    upsert = store_class(address.kind).upsert
    answers = [None, LOST[address.kind], LOST[address.kind], None, None]

    def answer(*arguments: Any) -> None:
        if error := answers.pop(0):
            raise error
        upsert(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(store_class(address.kind), "upsert", answer)
        patched.setattr(store_class(address.kind), "batch_size", 4)
        assert upload(model, address, photos).total == 12
    assert (waits, answers) == ([1, 2], [])


def test_a_connection_that_stays_lost_is_told(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    with monkeypatch.context() as patched:
        kill_after(address.kind, 1, LOST[address.kind], patched)
        with pytest.raises(InputError) as refused:
            upload(model, address, photos)
    line = f"{address}: {LOST[address.kind]}; 4 of 12 images are uploaded, the same command goes on with the rest"
    assert str(refused.value) == line
    assert waits == [1, 2, 4, 8, 16]
    assert upload(model, address, photos).unchanged == 4


def test_what_a_server_refuses_is_not_repeated(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    refusals = {
        "qdrant": UnexpectedResponse(403, "Forbidden", b"no key", httpx.Headers()),
        "lancedb": RuntimeError("lance error: no permission"),
        "milvus": MilvusException(65535, "no permission"),
    }
    for kind, error in refusals.items():
        address = StoreAddress.parse(f"{kind}:{tmp_path / kind}.db")
        with monkeypatch.context() as patched:
            kill_after(kind, 0, error, patched)
            with pytest.raises(InputError, match=r"(no key|no permission).*; 0 of 12 images are uploaded") as refused:
                upload(model, address, photos)
        assert "\n" not in str(refused.value)
    for text in ("qdrant:http://127.0.0.1:9", "milvus:http://127.0.0.1:9"):
        with pytest.raises(InputError, match=f"^{text}: .*(refused|Fail connecting)"):
            upload(model, StoreAddress.parse(text), photos)
    assert waits == []


def test_mistakes_are_named(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, line in [
        ("vectors", "--to vectors: expected KIND:PLACE, such as qdrant:http://localhost:6333; nearest: "),
        ("qdrnt:x", "--to qdrnt:x: expected KIND:PLACE, such as qdrant:http://localhost:6333; nearest: qdrant"),
        ("lancedb:", "--to lancedb:: the place is missing, as in lancedb:folder"),
        ("milvus:file", "--to milvus:file: the name of Milvus Lite's file must end with .db"),
        ("qdrant:ftp://x", "--to qdrant:ftp://x: an address begins with http or https, as in qdrant:http://localhost"),
    ]:
        with pytest.raises(InputError) as refused:
            StoreAddress.parse(text)
        assert str(refused.value).startswith(line)
    address = StoreAddress.parse(f"lancedb:{tmp_path / 'vectors'}")
    for name in ("", "a b", "a-b", "a__b", "_a", "a/b", "9", "a" * 101, "ä", "a;drop", "a\n"):
        with pytest.raises(InputError, match="expected a letter, and up to 99 letters, digits and single underscores"):
            upload_images(model, address, name, photos)
    image = next(photos.rglob("*.png"))
    with pytest.raises(InputError, match="given 2 times"):
        upload(model, address, [image, image])
    assert not (tmp_path / "vectors").exists()


def upload_shard(model: ImageEmbedder, address: StoreAddress, photos: Path, shard: str, **options: Any) -> UploadReport:
    """Upload a shard; the paths that are stored, and so the shards, don't depend on the place of the photographs."""
    return upload(model, address, photos, shard=Shard.parse(shard), root=photos, **options)


def upload_shards(
    model: ImageEmbedder, address: StoreAddress, photos: Path, count: int, **options: Any
) -> list[UploadReport]:
    """Upload all shards, one after the other, and check that searches find them after the last."""
    reports = [upload_shard(model, address, photos, f"{number + 1}/{count}", **options) for number in range(count)]
    assert [report.is_searchable for report in reports] == [False] * (count - 1) + [True]
    assert {report.collection for report in reports[:-1]} == {f"pictures__{model.fingerprint}"}
    return reports


def search_exactly(model: ImageEmbedder, photos: Path, k: int) -> list[list[str]]:
    """Return what an exact index finds for each photograph, as paths relative to their folder."""
    paths = dml.Index.build(model, photos).search(model.embed(photos), k)[1].tolist()
    return [[Path(path).relative_to(photos).as_posix() for path in found] for found in paths]


def test_shards_upload_each_image_once(
    model: ImageEmbedder, photos: Path, address: StoreAddress, embedded: list[str]
) -> None:
    reports = upload_shards(model, address, photos, 3)
    assert sorted(embedded) == [f"{number:02}.png" for number in range(12)]
    assert [report.total for report in reports] == np.cumsum([report.uploaded for report in reports]).tolist()
    assert all(report.held == report.uploaded > 0 for report in reports)
    assert search(address, model.embed(photos), 12) == search_exactly(model, photos, 12)
    embedded.clear()
    report = upload_shard(model, address, photos, "2/3")
    assert (report.uploaded, report.unchanged, report.held) == (0, reports[1].uploaded, reports[1].uploaded)
    assert (report.total, report.is_searchable, embedded) == (12, True, [])


def test_the_path_alone_decides_on_the_shard(
    model: ImageEmbedder, photos: Path, tmp_path: Path, embedded: list[str]
) -> None:
    """So that machines whose lists have another order, or more images, share no image and leave none out."""
    paths = sorted(map(str, photos.rglob("*.png")))
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "dml:images")
    names = {path: Path(path).relative_to(photos).as_posix() for path in paths}
    expected = [path for path in paths if uuid.uuid5(namespace, names[path]).int % 4 == 2]
    assert 0 < len(expected) < 12
    for number, listed in enumerate((paths, paths[::-1], paths[6:] + expected[:1])):
        embedded.clear()
        address = StoreAddress.parse(f"lancedb:{tmp_path / str(number)}")
        upload(model, address, listed, shard=Shard(3, 4), root=photos)
        assert embedded == [Path(path).name for path in listed if path in expected]


def test_a_killed_shard_goes_on(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, embedded: list[str]
) -> None:
    upload_shard(model, address, photos, "2/2")
    first = {*embedded}
    embedded.clear()
    with monkeypatch.context() as patched:
        kill_after(address.kind, 1, KeyboardInterrupt(), patched)
        with pytest.raises(KeyboardInterrupt):
            upload_shard(model, address, photos, "1/2")
    second = [*embedded]
    embedded.clear()
    report = upload_shard(model, address, photos, "1/2")
    assert embedded == second[4:]
    assert (report.unchanged, report.held, report.total, report.is_searchable) == (4, len(second), 12, False)
    assert first | {*second} == {f"{number:02}.png" for number in range(12)}
    assert len(first) + len(second) == 12


def test_the_last_shard_replaces_the_other_model(model: ImageEmbedder, photos: Path, address: StoreAddress) -> None:
    upload(model, address, photos, root=photos)
    other = make_model(seed=1)
    assert upload_shard(other, address, photos, "2/2", replace=True).replaced is None
    assert upload_shard(other, address, photos, "1/2", replace=True).replaced is None
    assert search(address, model.embed(photos), 3) == search_exactly(model, photos, 3)
    report = upload_shard(other, address, photos, "2/2", replace=True)
    assert report.replaced == ("pictures" if address.kind == "lancedb" else f"pictures__{model.fingerprint}")
    assert search(address, other.embed(photos), 3) == search_exactly(other, photos, 3)


def test_shards_end_without_unreadable_images(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    address = StoreAddress.parse(f"lancedb:{tmp_path / 'vectors'}")
    copied = shutil.copytree(photos, tmp_path / "photos")
    for number in range(4):
        (copied / f"broken_{number}.png").write_bytes(b"no image")
    reports = upload_shards(model, address, copied, 2, on_corrupt="skip")
    assert (sum(report.uploaded for report in reports), reports[-1].total) == (12, 12)
    (copied / "broken_0.png").write_bytes((photos / "cats" / "00.png").read_bytes())
    other = StoreAddress.parse(f"lancedb:{tmp_path / 'others'}")
    assert not upload_shard(model, other, copied, "2/2", on_corrupt="skip").is_searchable
    assert not upload_shard(model, other, copied, "1/2", on_corrupt="skip").is_searchable
    assert upload_shard(model, other, copied, "2/2", on_corrupt="skip").is_searchable


def test_a_count_that_differs_is_an_error(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert = store_class(address.kind).upsert

    def lose_one(store: Any, collection: str, points: Any) -> None:
        upsert(store, collection, type(points)(*(column[1:] for column in points)))

    with monkeypatch.context() as patched:
        patched.setattr(store_class(address.kind), "upsert", lose_one)
        with pytest.raises(InputError) as refused:
            upload(model, address, photos)
    line = f"{address}: pictures__{model.fingerprint} holds 11 of the 12 images uploaded or found there; "
    assert str(refused.value) == f"{line}the same command uploads the rest"
    report = upload(model, address, photos)
    assert (report.uploaded, report.unchanged, report.held) == (1, 11, 12)


def test_the_last_shard_may_end_before_another_has_counted(
    model: ImageEmbedder, photos: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    upload_shard(model, address, photos, "2/2")
    upsert = store_class(address.kind).upsert

    def end_last_shard(store: Any, collection: str, points: Any) -> None:
        upsert(store, collection, points)
        store.switch("pictures", collection)  # which removes the collection in LanceDB

    monkeypatch.setattr(store_class(address.kind), "upsert", end_last_shard)
    report = upload_shard(model, address, photos, "1/2")
    assert (report.held, report.total, report.is_searchable) == (report.uploaded, 12, True)
    assert waits == ([1, 2, 4, 8, 16] if address.kind == "lancedb" else [])
    assert search(address, model.embed(photos), 3) == search_exactly(model, photos, 3)


def test_a_table_that_another_process_makes_is_waited_for(
    model: ImageEmbedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    """Its folder is there, and so it is listed, a moment before it can be opened."""
    address = StoreAddress.parse(f"lancedb:{tmp_path / 'vectors'}")
    upload_shard(model, address, photos, "1/2")
    staged = tmp_path / "vectors" / f"pictures__{model.fingerprint}.lance"
    hidden = staged.rename(tmp_path / "hidden")
    staged.mkdir()
    (staged / "data").mkdir()

    def appear(seconds: float) -> None:
        waits.append(seconds)
        shutil.rmtree(staged)
        hidden.rename(staged)

    monkeypatch.setattr("dml.inference.vector_stores.stores.sleep", appear)
    report = upload_shard(model, address, photos, "2/2")
    assert (report.total, report.is_searchable, waits) == (12, True, [1])


@pytest.mark.pipeline
def test_processes_upload_their_shards_at_once(model: ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    saved = model.save_pretrained(tmp_path / "model")
    address = f"lancedb:{tmp_path / 'vectors'}"
    options = ["--to", address, "--collection", "pictures", "--root", str(photos), "--workers", "0"]
    command = [sys.executable, "-m", "dml", "index", str(saved), str(photos), *options]
    shards = [
        subprocess.Popen([*command, "--shard", f"{number}/3"], stdout=subprocess.PIPE, text=True)
        for number in (1, 2, 3)
    ]
    lines = [shard.communicate()[0].splitlines()[-1] for shard in shards]
    assert [shard.returncode for shard in shards] == [0, 0, 0]
    numbers = [[*map(int, re.findall(r"\b\d+\b", line.removeprefix(address)))][:4] for line in lines]
    assert all(unchanged == 0 and uploaded > 0 for uploaded, unchanged, *_ in numbers)
    assert sum(uploaded for uploaded, *_ in numbers) == 12
    repeated = subprocess.run([*command, "--shard", "3/3"], stdout=subprocess.PIPE, text=True, check=True).stdout
    last = numbers[2][0]
    for number, (line, (uploaded, *_)) in enumerate(zip(lines, numbers, strict=True), start=1):
        assert f" in pictures; shard {number}/3: {uploaded} images, {uploaded} in the database" in line
    line = f"0 images uploaded, {last} were there, 12 in pictures; shard 3/3: {last} images, {last} in the database"
    assert repeated.splitlines()[-1] == f"{address}: {line}"
    found = search(StoreAddress.parse(address), model.embed(photos), 12)
    assert found == search_exactly(model, photos, 12)


@pytest.mark.parametrize("library", ["qdrant_client", "lancedb", "pymilvus", "milvus_lite"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.runtime.errors.find_spec", lambda name: None if name == library else name)
    kind = {"qdrant_client": "qdrant", "lancedb": "lancedb"}.get(library, "milvus")
    with pytest.raises(InputError, match=rf"^{library}: not installed; pip install 'dml-retrieval\[{kind}\]'$"):
        StoreAddress.parse(f"{kind}:vectors.db")
