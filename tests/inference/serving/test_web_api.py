"""The JSON API of an index: what it answers, and what it refuses."""

import json
import socket
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from io import BytesIO
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from served_index import CALIBRATION_OF_INDEX, HOSTS, LIMITS, THRESHOLD, build_index, served
from small_embedders import make_model

from dml.data.images import ImageLimits
from dml.inference.image_index import Index
from dml.inference.serving.image_search import ImageSearch, ServedIndex
from dml.inference.serving.web_api import create_app

pytestmark = pytest.mark.pipeline

pytest_plugins = ("served_index",)


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app(ImageSearch(index, LIMITS), HOSTS), base_url="http://localhost") as client:
        yield client


def read(index: Index, position: int) -> bytes:
    return Path(index.items.paths[position]).read_bytes()


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def refusal(response: Any, status: int) -> str:
    """The line of an answer of this status, which names no path of the machine."""
    assert response.status_code == status, response.text
    assert [*response.json()] == ["error"]
    line: str = response.json()["error"]
    assert line
    assert "\n" not in line
    assert "private" not in line
    assert "/tmp" not in line
    return line


def test_an_upload_finds_what_the_index_finds(client: TestClient, index: Index) -> None:
    scores, positions = index.search_positions(index.items.paths[7], 5)
    found = client.post("/api/search?k=5", content=read(index, 7)).json()["neighbors"]
    assert [neighbor["item"] for neighbor in found] == positions[0].tolist()
    np.testing.assert_array_equal([neighbor["score"] for neighbor in found], scores[0].tolist())
    probability = float(CALIBRATION_OF_INDEX.probability(scores[0, 0]))
    itself = {"item": 7, "name": "07.png", "label": "dogs", "same": True, "probability": probability}
    assert found[0] == itself | {"score": scores[0, 0]}
    assert index.calibration == CALIBRATION_OF_INDEX
    assert [neighbor["same"] for neighbor in found] == [score >= THRESHOLD for score in scores[0]]
    assert [neighbor["probability"] for neighbor in found] == pytest.approx(CALIBRATION_OF_INDEX.probability(scores[0]))
    assert found == client.get("/api/items/7/neighbors?k=5").json()["neighbors"]
    assert len(client.post("/api/search?k=1000", content=read(index, 7)).json()["neighbors"]) == len(index)


def test_a_label_filters_before_the_neighbors_are_counted(client: TestClient, index: Index) -> None:
    vectors = index.model.embed(index.items.paths.tolist())
    for (query, label), k in product(((0, "dogs"), (7, "dogs"), (11, "cats")), (1, 3, 1000)):
        similarity = vectors[query] @ vectors.T
        expected = [item for item in np.argsort(-similarity) if index.items.labels[item] == label][:k]
        found = client.get(f"/api/items/{query}/neighbors", params={"k": k, "label": label}).json()["neighbors"]
        assert [neighbor["item"] for neighbor in found] == expected


def test_it_describes_the_index(client: TestClient, index: Index) -> None:
    facts = client.get("/api/index").json()
    assert (facts["images"], facts["labels"], facts["kind"], facts["threshold"]) == (12, 2, "Flat", THRESHOLD)
    assert (facts["prior"], facts["prior_is_of_labels"]) == (CALIBRATION_OF_INDEX.prior, True)
    assert facts["fingerprint"] == index.model.fingerprint
    assert client.get("/api/labels").json() == [{"label": "cats", "images": 6}, {"label": "dogs", "images": 6}]
    page = client.get("/api/items", params={"offset": 1, "limit": 2, "label": "dogs"}).json()
    assert page["total"] == 6
    assert page["items"][0] == {"item": 7, "name": "07.png", "label": "dogs"} == client.get("/api/items/7").json()
    drawn = client.get("/api/items/7/image?size=16")
    assert drawn.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(drawn.content)).size == (16, 13)
    for path in ("/", "/page.js", "/api/index", "/api/labels", "/api/items?limit=100", "/api/items/3/neighbors?k=12"):
        assert "private" not in client.get(path).text, path  # the folder of the images
    operations = client.get("/openapi.json").json()["paths"]
    assert "application/octet-stream" in operations["/api/search"]["post"]["requestBody"]["content"]
    assert refusal(client.get("/docs"), 404)  # it would load scripts from the internet


def test_images_without_a_label_count_for_no_label(index: Index) -> None:
    unlabeled = Index.build(index.model, index.items.paths.tolist())
    with TestClient(create_app(ImageSearch(unlabeled), HOSTS), base_url="http://localhost") as client:
        facts = client.get("/api/index").json()
        assert (facts["labels"], facts["prior"], facts["prior_is_of_labels"]) == (0, 0.05, False)
        assert client.get("/api/labels").json() == []
        assert client.get("/api/items").json()["total"] == 12


def test_only_files_of_the_index_are_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("token 1234")
    (tmp_path / "private").mkdir()
    index = build_index(tmp_path / "private", 4)
    Path(index.items.paths[1]).unlink()
    Path(index.items.paths[1]).symlink_to(secret)
    Path(index.items.paths[2]).unlink()
    with TestClient(create_app(ImageSearch(index), HOSTS), base_url="http://localhost") as client:
        for item in (1, 2):
            for what in ("image", "neighbors"):
                line = refusal(client.get(f"/api/items/{item}/{what}"), 410)
                assert line == f"item {item}: its image file can't be read any more"
        for path in (
            "/api/items/../../secret.txt",
            "/api/items/..%2f..%2fsecret.txt/image",
            f"/api/items/{secret}/image",
            f"/api/items/%2e%2e{secret}",
            "/..%2f..%2f..%2f..%2fetc%2fpasswd",
            "/assets/../page.html",
            "//etc/passwd",
        ):
            response = client.get(path)
            assert response.status_code in (404, 422), path
            assert "1234" not in response.text
            assert "root:" not in response.text


def test_bad_requests_are_told_in_a_line(client: TestClient) -> None:
    cases = [
        ("GET /api/items/99", 404, "item 99: "),
        (f"GET /api/items/{10**30}", 422, "item: "),
        ("GET /api/items/-1", 422, "item: "),
        ("GET /api/items/1/image?size=100000", 422, "size: "),
        ("GET /api/items/1/neighbors?k=0", 422, "k: "),
        (f"GET /api/items?offset={10**30}", 422, "offset: "),
        ("GET /api/items?label=birds", 404, "label=birds: "),
        ("GET /api/items/1/neighbors?label=%1b[31m", 404, r"label=\x1b[31m: "),
        ("DELETE /api/items/1", 405, "Method Not Allowed"),
        ("GET /api/nothing", 404, "Not Found"),
    ]
    for request_line, status, line in cases:
        assert line in refusal(client.request(*request_line.split(" ", 1)), status)
    assert "upload: a form" in refusal(client.post("/api/search", headers={"content-type": "multipart/form-data"}), 415)


def claim_size(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims so many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    chunks = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in (header, data)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
JPEG, PNG = encode(PHOTO, "JPEG", progressive=True), encode(PHOTO, "PNG")


def test_hostile_uploads_are_told_in_a_line(client: TestClient) -> None:
    cases = [
        (b"", 400, "upload: empty"),
        (b"GIF89a", 422, "upload: cannot be decoded"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "upload: cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422, "upload: cannot be decoded"),
        (JPEG[:400], 422, "upload: cannot be decoded"),
        (PNG[:-2000], 422, "upload: cannot be decoded"),
        (claim_size(60_000, 60_000), 413, "upload: 60,000 x 60,000 pixels"),
        (encode(Image.new("L", (4000, 4000)), "PNG"), 413, "upload: 4,000 x 4,000 pixels"),
        (encode(Image.new("L", (4000, 4000)), "JPEG"), 413, "upload: 4,000 x 4,000 pixels"),
        (encode(Image.new("L", (1, 60_000)), "PNG"), 422, "upload: 1 x 60,000 pixels"),
        (encode(Image.new("L", (8, 801)), "PNG"), 422, "upload: 8 x 801 pixels"),
        (JPEG + bytes(LIMITS.max_image_bytes), 413, "upload: more than 200,000 bytes"),
    ]
    for content, status, line in cases:
        assert line in refusal(client.post("/api/search", content=content), status)
        parts = iter([content[:1000], content[1000:]])  # no Content-Length
        assert line in refusal(client.post("/api/search", content=parts), status)
    assert client.post("/api/search", content=encode(Image.new("L", (8, 800)), "PNG")).status_code == 200


@given(
    content=st.sampled_from([JPEG, PNG, encode(PHOTO, "GIF"), encode(PHOTO, "TIFF"), encode(PHOTO, "WEBP")]),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=8)), max_size=4),
    end=st.integers(1, 10_000),
)
def test_damaged_uploads_are_found_or_refused(
    client: TestClient, content: bytes, changes: list[tuple[int, bytes]], end: int
) -> None:
    damaged = bytearray(content)
    for start, replacement in changes:
        start %= len(damaged)
        damaged[start : start + len(replacement)] = replacement
    response = client.post("/api/search?k=2", content=bytes(damaged[:end]))
    if response.status_code == 200:
        assert len(response.json()["neighbors"]) == 2
    else:
        assert response.status_code in (413, 422)
        refusal(response, response.status_code)


def test_other_origins_are_kept_away(client: TestClient) -> None:
    assert client.get("/api/index", headers={"host": "evil.example"}).status_code == 400  # DNS rebinding
    assert client.get("/api/index", headers={"host": "localhost:8000"}).status_code == 200
    for site in ("cross-site", "same-site"):
        refusal(client.post("/api/search", content=PNG, headers={"sec-fetch-site": site}), 403)
        assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page
    for path in ("/", "/api/index", "/nothing", "/api/items/0/image"):
        headers = client.get(path, headers={"origin": "http://evil.example"}).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


FOREIGN: list[tuple[dict[str, str], bool]] = [
    ({}, False),  # a program
    ({"origin": "http://nas.example:8000"}, False),
    ({"origin": "http://NAS.example:8000"}, False),
    ({"origin": "https://nas.example:8000"}, False),  # behind a proxy
    ({"referer": "http://nas.example:8000/"}, False),
    ({"sec-fetch-site": "same-origin", "origin": "https://photos.example"}, False),  # behind a proxy
    ({"sec-fetch-site": "none", "referer": "http://evil.example/"}, False),
    ({"origin": "http://evil.example"}, True),
    ({"origin": "null"}, True),  # a sandboxed frame, or a page without referrers
    ({"origin": "http://nas.example"}, True),
    ({"origin": "http://nas.example:8001", "referer": "http://nas.example:8000/"}, True),
    ({"origin": "http://evil.example/nas.example:8000"}, True),
    ({"referer": "http://evil.example/nas.example:8000"}, True),
    ({"referer": "http://nas.example:8000@evil.example/"}, True),
    ({"referer": "http://["}, True),
    ({"sec-fetch-site": "cross-site", "origin": "http://nas.example:8000"}, True),
]


def test_requests_of_other_pages_are_refused_where_browsers_name_no_site(index: Index) -> None:
    """Browsers send Sec-Fetch-Site to encrypted pages and to their own machine alone."""
    with TestClient(create_app(ImageSearch(index, LIMITS), ["nas.example"])) as client:
        for headers, is_foreign in FOREIGN:
            headers = {"host": "nas.example:8000", **headers}
            for method, path, content in (
                ("POST", "/api/search?k=1", read(index, 0)),
                ("GET", "/api/items/0/neighbors", None),
            ):
                response = client.request(method, path, headers=headers, content=content)
                if is_foreign:
                    assert refusal(response, 403) == "requests of other web pages are refused"
                    assert client.get("/", headers=headers).status_code == 200  # a link to the page
                else:
                    assert response.status_code == 200


def test_a_bug_is_no_answer_of_its_own(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    search = ImageSearch(index)
    monkeypatch.setattr(search, "get_item", lambda item: 1 / 0)
    with TestClient(create_app(search, HOSTS), base_url="http://localhost", raise_server_exceptions=False) as client:
        assert refusal(client.get("/api/items/1"), 500) == "the server failed; its log says why"


@pytest.mark.distributed
def test_32_clients_are_answered_at_a_time(address: str, index: Index) -> None:
    def search(client: int) -> list[tuple[int, Any]]:
        connection, answers = HTTPConnection(urlsplit(address).netloc, timeout=60), []
        for turn in range(3):
            content = b"broken" if client % 8 == 7 else read(index, (client + turn) % len(index))
            connection.request("POST", "/api/search?k=3", body=content)
            response = connection.getresponse()
            answers.append((response.status, json.loads(response.read())))
        connection.close()
        return answers

    expected = [index.search_positions(path, 3) for path in index.items.paths]
    with ThreadPoolExecutor(32) as executor:
        for client, answers in enumerate(executor.map(search, range(32))):
            if client % 8 == 7:
                assert [(status, [*answer]) for status, answer in answers] == [(422, ["error"])] * 3
                continue
            for turn, (status, answer) in enumerate(answers):
                scores, positions = expected[(client + turn) % len(index)]
                assert status == 200
                assert [neighbor["item"] for neighbor in answer["neighbors"]] == positions[0].tolist()
                assert [neighbor["score"] for neighbor in answer["neighbors"]] == scores[0].tolist()


def test_a_client_that_hangs_up_leaves_no_trace(address: str, index: Index, caplog: pytest.LogCaptureFixture) -> None:
    host = urlsplit(address).netloc
    connection = HTTPConnection(host, timeout=60)
    connection.putrequest("POST", "/api/search")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"part")
    connection.close()
    other = HTTPConnection(host, timeout=60)
    other.request("GET", "/api/index")
    assert other.getresponse().status == 200
    other.close()
    assert caplog.records == []


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def test_waiting_uploads_take_the_memory_of_their_bytes(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    size, number, is_over = 4 << 20, 6, Event()
    search = ImageSearch(index, ImageLimits(max_image_bytes=size, max_pixels=1_000_000))
    monkeypatch.setattr(search, "find_similar", lambda *_: is_over.wait(60) and [])
    request = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    with served(search) as address, ExitStack() as connections:
        tracemalloc.start()
        for _ in range(number):
            connections.enter_context(connect(address)).sendall(request)
        end = time.monotonic() + 60
        while tracemalloc.get_traced_memory()[0] < number * size and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        is_over.set()
    assert number * size <= peak < 1.4 * number * size


def test_a_replaced_index_is_served_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each answer is of the state, and states the space, of one version of the folder; a damaged one isn't taken."""
    index = build_index(tmp_path, 12)
    folder, opened = index.save(tmp_path / "index"), []

    def open_index() -> Index:
        opened.append(Index.load(folder, device="cpu"))
        return opened[-1]

    def search() -> dict[str, Any]:
        answer: dict[str, Any] = client.get("/api/items/7/neighbors?k=5").json()
        (state,) = [state for state in opened if state.space == answer["space"]]
        scores, positions = state.search_positions(state.items.paths[7], 5)
        assert [neighbor["item"] for neighbor in answer["neighbors"]] == state.items.ids[positions[0]].tolist()
        assert [neighbor["score"] for neighbor in answer["neighbors"]] == pytest.approx(scores[0].tolist())
        return answer

    with TestClient(create_app(ServedIndex(folder, open_index), HOSTS), base_url="http://localhost") as client:
        before = search()
        assert search() == before
        assert len(opened) == 1
        index.upgrade(make_model(5), "none")
        index.save(folder)
        after = search()
        assert (before["space"], after["space"]) == (opened[0].space, index.space)
        assert client.get("/api/index").json()["fingerprint"] == index.space != before["space"]
        index.remove(index.items.paths[0])
        index.save(folder)
        (folder / "index.json").write_text("{}")
        assert client.get("/api/index").json()["images"] == 12
        assert "its state before is served on" in caplog.text
