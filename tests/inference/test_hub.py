"""Models on the Hugging Face hub, of which a server on this machine stands in for the API."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from manifests import seal
from small_embedders import make_model

pytestmark = pytest.mark.pipeline

Files = dict[str, bytes]

COMMIT = "0123456789abcdef0123456789abcdef01234567"

LOADS = """
import sys
import dml

for place, revision in (words.split("@") for words in sys.argv[1:]):
    try:
        print(dml.load(place, revision=revision, device="cpu").fingerprint)
    except dml.runtime.errors.InputError as error:
        print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """The requests of huggingface_hub by which a repository is made, filled, listed and downloaded."""

    def __init__(self, repositories: dict[str, Files], *arguments: object) -> None:
        self.repositories = repositories
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").removeprefix("api/models/").split("/")
        repository, (kind, revision, *names) = "/".join(parts[:2]), parts[2:] or ("revision", "main")
        files = self.repositories.get(repository)
        if files is None:
            self.answer({}, 404, X_Error_Code="RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.answer({}, 404, X_Error_Code="RevisionNotFound")
        elif kind == "resolve":
            self.answer(files[names[0]], ETag=f'"{sha1(files[names[0]]).hexdigest()}"')
        elif kind == "tree":
            entries = {name: (len(content), sha1(content).hexdigest()) for name, content in files.items()}
            self.answer([{"type": "file", "path": name, "size": n, "oid": oid} for name, (n, oid) in entries.items()])
        else:
            self.answer({"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://{self.headers['Host']}"
        parts = self.path.removeprefix("/api/models/").split("/")
        repository = "/".join(parts[:2])
        if self.path == "/api/repos/create":
            body = json.loads(content)
            name = f"{body['organization']}/{body['name']}"
            self.repositories[name] = {}
            self.answer({"url": f"{url}/{name}", "id": name})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif parts[2] == "preupload":
            names = [file["path"] for file in json.loads(content)["files"]]
            self.answer({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        else:
            entries = [json.loads(line) for line in content.splitlines()]
            files = [entry["value"] for entry in entries if entry["key"] == "file"]
            self.repositories[repository] |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            self.answer({"commitUrl": f"{url}/{repository}/commit/{COMMIT}", "commitOid": COMMIT})


@pytest.fixture
def repositories() -> dict[str, Files]:
    return {}


@pytest.fixture
def environment(repositories: dict[str, Files], tmp_path: Path) -> Iterator[dict[str, str]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, repositories)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "hf_nobody"}
        server.shutdown()
        thread.join()


def run_python(code: str, *arguments: str, env: dict[str, str], cwd: Path) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert not result.returncode, result.stderr
    return result.stdout.splitlines()


def test_a_model_is_uploaded_and_opened(
    repositories: dict[str, Files], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_model().save_pretrained(tmp_path / "model")
    push = "import sys, dml; print(dml.load(sys.argv[1]).push_to_hub('ann/birds'))"
    assert run_python(push, str(folder), env=environment, cwd=tmp_path) == [f"{environment['HF_ENDPOINT']}/ann/birds"]
    assert {*repositories["ann/birds"]} >= {"README.md", "config.yaml", "model.json", "model.safetensors"}

    files = repositories["ann/birds"]
    (folder / "config.yaml").write_bytes(files["config.yaml"].replace(b"dml.models.small_cnn.small_cnn", b"os.getcwd"))
    seal(folder / "model.json")
    attack = {file.name: file.read_bytes() for file in folder.iterdir()}
    repositories |= {"eve/birds": attack, "eve/pickle": {"model.pkl": b"cos\nsystem\n"}}
    places = ["ann/birds@main", "ann/birds@v2", "ann/no@main", "eve/birds@main", "eve/pickle@main"]
    opened, no_revision, no_repository, refused, no_model = run_python(LOADS, *places, env=environment, cwd=tmp_path)
    assert opened == make_model().fingerprint
    assert "ann/birds: nothing is there, and the Hugging Face hub gives no revision v2" in no_revision
    assert "(RevisionNotFoundError)" in no_revision
    assert "(RepositoryNotFoundError)" in no_repository
    assert "eve/birds: model.backbone._target_=os.getcwd could run any code, or write anywhere; trust=True" in refused
    assert "holds nothing that push_to_hub uploaded" in no_model

    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    (tmp_path / "outputs").mkdir()
    opened, missing, local = run_python(
        LOADS, "ann/birds@main", "ann/no@main", "outputs/no@main", env=offline, cwd=tmp_path
    )
    assert opened == make_model().fingerprint
    assert "(OfflineModeIsEnabled)" in missing
    assert "outputs/no: nothing is there; give" in local
