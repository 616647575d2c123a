"""The command ``dml serve``: how it starts, ends, and what it refuses."""

import json
import os
import signal
import socket
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from conftest import Refused
from forks import ForkedScript
from small_embedders import make_model, write_photos

from dml.inference.image_index import Index
from dml.inference.serving.web_api import LIMITS
from dml.runtime import signals


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("served")
    (folder / "photos").mkdir()
    return str(Index.build(make_model(), write_photos(folder / "photos", 4)).save(folder / "index"))


def start(index: str, *options: str) -> tuple[ForkedScript, int]:
    """Start a server, and wait until it serves -> the process and the port."""
    script = ForkedScript("dml/__main__.py", "serve", index, "--port", "0", "--device", "cpu", *options)
    return script, script.served_port()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.pipeline
def test_it_serves_until_a_signal(index: str, signum: int, code: int) -> None:
    script, port = start(index)
    # a connection that stays open must not keep the server from ending
    with socket.create_connection(("127.0.0.1", port)):
        os.kill(script.pid, signum)
        done = script.finish(timeout=15)
    assert done.stdout == f"{index}: 4 images at http://127.0.0.1:{port}; Ctrl-C ends it\n"
    assert done.stderr == f"stopped by {signal.Signals(signum).name}\n"
    assert done.returncode == code


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        (["--host", "127.0.257"], ["127.0.1.1"]),  # a name of the address
        (["--host", "0.0.0.0", "--allow-host", "localhost"], ["127.0.0.1", "localhost"]),
    ],
)
@pytest.mark.pipeline
def test_the_addresses_that_it_names_answer(index: str, options: list[str], hosts: list[str]) -> None:
    script, port = start(index, *options)
    for host in hosts:
        with urlopen(f"http://{host}:{port}/api/index", timeout=60) as answer:
            assert json.load(answer)["images"] == 4
    os.kill(script.pid, signal.SIGTERM)
    addresses = " and ".join(f"http://{host}:{port}" for host in hosts)
    assert script.finish(timeout=15).stdout == f"{index}: 4 images at {addresses}; Ctrl-C ends it\n"


@pytest.mark.pipeline
def test_an_upload_that_never_ends_keeps_it_for_seconds_only(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE_PERIOD", 0.1)
    monkeypatch.setitem(LIMITS, "timeout_graceful_shutdown", 0.5)
    script, port = start(index)
    with socket.create_connection(("127.0.0.1", port)) as upload:
        upload.sendall(
            b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\npart"
        )
        assert upload.recv(100).startswith(b"HTTP/1.1 100 ")  # the server reads the upload
        os.kill(script.pid, signal.SIGTERM)
        done = script.finish(timeout=15)
        answer = b"".join(iter(partial(upload.recv, 1000), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the server was stopped meanwhile" in answer
    first, canceled, last = done.stderr.splitlines()
    assert first == "stopping; Ctrl-C again stops at once"
    assert canceled.startswith("Cancel 1 running task")  # uvicorn's own words
    assert last == "stopped by SIGTERM"
    assert done.returncode == 143


def test_mistakes_are_told_in_a_line(index: str, tmp_path: Path, refused: Refused) -> None:
    assert f"{tmp_path}: no index there" in refused(str(tmp_path), "--port", "0", command="serve")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"--port {port}: " in refused(index, "--port", str(port), command="serve")
    for port in ("-1", "65536", "http"):
        assert "is not a port" in refused(index, f"--port={port}", command="serve")
    for address in ("0.0.0.0", "::"):
        assert "--allow-host NAME says" in refused(index, "--host", address, "--port", "0", command="serve")
    for address in ("192.0.2.1", "fe80::1%lo", "::ffff:192.0.2.1", "no-such.invalid"):  # some systems have none of them
        assert refused(index, "--host", address, "--port", "0", command="serve").startswith(f"error: --host {address}")
    for name in ("*", "http://box", "box:9000", "192.168.1.20:9000"):
        assert "without http:// and the port" in refused(index, "--allow-host", name, "--port", "0", command="serve")


def test_a_model_of_other_weights_is_refused(index: str, tmp_path: Path, refused: Refused) -> None:
    other = make_model(seed=1).save_pretrained(tmp_path / "other")
    line = refused(index, "--model", str(other), "--port", "0", command="serve")
    assert "its vectors are of the model" in line
    assert "search with that model" in line


def test_a_missing_library_is_named_with_its_command(
    index: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr("dml.runtime.errors.find_spec", lambda name: None if name == "uvicorn" else name)
    assert refused(index, command="serve") == "error: uvicorn: not installed; pip install 'dml-retrieval[serve]'"
