"""The command ``dml label``: how it starts, goes on after a kill, ends, and what it refuses."""

import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from forks import ForkedScript
from small_embedders import make_model, write_photos

from dml.__main__ import dispatch
from dml.runtime.locks import holding


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model().save_pretrained(tmp_path_factory.mktemp("saved") / "model"))


class Page:
    """The API of a running ``dml label``."""

    def __init__(self, photos: Path, output: Path, model: str) -> None:
        options = ["--output", str(output), "--model", model, "--port", "0", "--device", "cpu", "--workers", "0"]
        self.script = ForkedScript("dml/__main__.py", "label", str(photos), *options)
        self.port = self.script.served_port()
        self.ask("question")

    def ask(self, path: str, **sent: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        data = json.dumps(sent).encode() if sent else None
        with urlopen(Request(f"http://127.0.0.1:{self.port}/api/{path}", data, headers), timeout=60) as answer:
            self.question = json.load(answer)
        return self.question

    def answer(self, *, same: bool) -> None:
        self.ask("answers", number=self.question["number"], answer=same)


@pytest.mark.pipeline
def test_it_goes_on_after_a_kill_and_writes_the_labels_at_its_end(tmp_path: Path, model: str) -> None:
    photos, output = write_photos(tmp_path, 12), tmp_path / "labels.csv"
    page = Page(photos, output, model)
    for _ in range(3):
        page.answer(same=True)
    question = page.question
    os.kill(page.script.pid, signal.SIGKILL)
    page.script.finish(timeout=15)
    page = Page(photos, output, model)
    assert page.question["number"] == 3
    assert (page.question["first"], page.question["second"]) == (question["first"], question["second"])
    page.answer(same=True)
    os.kill(page.script.pid, signal.SIGTERM)
    done = page.script.finish(timeout=15)
    assert f"{output}: questions at http://127.0.0.1:{page.port}; Ctrl-C ends it\n" in done.stdout
    assert done.returncode == 143
    header, *lines = output.read_text().splitlines()
    assert header == "path,label"
    assert lines
    assert all((tmp_path / line.split(",")[0]).is_file() for line in lines)


def test_mistakes_are_told_in_a_line(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            dispatch(["label", *arguments, "--model", model, "--port", "0", "--device", "cpu", "--workers", "0"])
        assert stopped.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    photos = write_photos(tmp_path, 4)
    assert "must end in .csv" in refused(str(photos), "--output", str(tmp_path / "labels.txt"))
    assert "no such file" in refused(str(tmp_path / "none"), "--output", str(tmp_path / "labels.csv"))
    (tmp_path / "mine.csv").write_text("path,label\ncats/00.png,cat\n")
    assert "there already, and not by dml label" in refused(str(photos), "--output", str(tmp_path / "mine.csv"))
    with holding(tmp_path / ".labels.csv.lock"):
        line = refused(str(photos), "--output", str(tmp_path / "labels.csv"))
        assert f"process {os.getpid()} on" in line
        assert "is asking about it" in line
    image = str(photos / "cats" / "00.png")
    assert "1 image can be read; a question needs two" in refused(image, "--output", str(tmp_path / "labels.csv"))
