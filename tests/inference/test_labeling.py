"""The answers of a user and the labels that follow: nothing is lost, whenever the process is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dml.data.readers.csv import read
from dml.inference.labeling import Labeling
from dml.runtime.errors import InputError

COUNT = 40
LABELS = np.arange(COUNT) % 4
FEATURES = np.eye(4, 16, dtype=np.float32)[LABELS] + np.random.default_rng(0).normal(0, 0.05, (COUNT, 16))
FEATURES = (FEATURES / np.linalg.norm(FEATURES, axis=1, keepdims=True)).astype(np.float32)

USER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_labeling import LABELS, open_labeling
labeling = open_labeling(Path({folder!r}))
for number in range(1000):
    question = labeling.ask()
    if question["first"] is None:
        break
    labeling.reply(question["number"], same=bool(LABELS[question["first"]] == LABELS[question["second"]]))
    print(number, flush=True)
    labeling.write_labels()
"""


def open_labeling(folder: Path, features: np.ndarray = FEATURES) -> Labeling:
    return Labeling(folder / "labels.csv", [str(folder / f"photos/{n:02}.jpg") for n in range(COUNT)], features)


def answer(labeling: Labeling, number: int) -> None:
    for _ in range(number):
        question = labeling.ask()
        same = bool(LABELS[question["first"]] == LABELS[question["second"]])
        labeling.reply(question["number"], same=same)


def test_the_labels_are_a_list_that_a_training_reads(tmp_path: Path) -> None:
    (tmp_path / "disk/labels").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/labels")
    photos = [tmp_path / f"{n // 2}.{'jpg' if n % 2 else 'png'}" for n in range(COUNT)]
    labeling = Labeling(tmp_path / "link/labels.csv", [*map(str, photos)], FEATURES)
    while labeling.ask()["first"] is not None:
        answer(labeling, 1)
    labeling.write_labels()
    table = read(tmp_path / "link/labels.csv", test_fraction=None)
    assert len(table) == COUNT
    numbers = [photos.index(Path(path).resolve()) for path in table.paths]
    np.testing.assert_array_equal(table.labels == table.labels.T, LABELS[numbers][:, None] == LABELS[numbers])
    assert labeling.counts == {"labeled": COUNT, "classes": 4}
    assert table.names[0] == ("../../0.jpg", "../../0.png", "../../1.jpg", "../../1.png")


def test_an_answer_is_taken_back_and_a_late_one_changes_nothing(tmp_path: Path) -> None:
    labeling = open_labeling(tmp_path)
    answer(labeling, 3)
    question = labeling.ask()
    labeling.reply(3, same=True)
    labeling.reply(3, same=False)  # of another page, which still shows the question before
    labeling.reply(4, same=None, undo=True)
    assert labeling.ask() == question
    assert open_labeling(tmp_path).ask() == question
    for number in (3, 2, 1, 0):
        labeling.reply(number, same=None, undo=True)
    assert labeling.ask()["number"] == 0
    labeling.reply(0, same=None)
    assert labeling.ask()["number"] == 1
    assert labeling.log.read_text().count("\n") == 9


def test_another_model_takes_over_the_answers(tmp_path: Path) -> None:
    answer(open_labeling(tmp_path), 20)
    other = open_labeling(tmp_path, FEATURES[:, ::-1].copy() ** 3)
    question = other.ask()
    assert question["number"] == 20
    lines = [json.loads(line) for line in other.log.read_text().splitlines()]
    asked = {frozenset((line["first"], line["second"])) for line in lines}
    assert frozenset(f"photos/{question[key]:02}.jpg" for key in ("first", "second")) not in asked


def test_what_cannot_go_on_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labeling = open_labeling(tmp_path)
    answer(labeling, 2)
    few = Labeling(tmp_path / "labels.csv", [str(tmp_path / f"other/{n}.jpg") for n in range(COUNT)], FEATURES)
    assert "without 2 answers about missing images" in caplog.text
    assert few.ask()["number"] == 2
    with labeling.log.open("a") as file:
        file.write("no answer\n")
    with pytest.raises(InputError, match="line 3: not an answer; remove the line"):
        open_labeling(tmp_path)
    (tmp_path / "mine.csv").write_text("path,label\n")
    with pytest.raises(InputError, match="there already, and not by dml label"):
        Labeling(tmp_path / "mine.csv", labeling.paths, FEATURES)


@pytest.mark.pipeline
def test_a_killed_process_loses_no_answer(tmp_path: Path) -> None:
    script = USER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    said = 0
    for kill in range(5):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.01 * kill)  # at another moment each time
            os.kill(process.pid, signal.SIGKILL)
            said += 1 + len([*process.stdout])
        number = open_labeling(tmp_path).ask()["number"]
        assert said <= number <= said + kill + 1  # an answer may be on the disk and not yet be said
    log = tmp_path / "labels.csv.answers.jsonl"
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(b'{"first": "photos/0')  # what a full disk may leave
    labeling = open_labeling(tmp_path)
    assert log.read_bytes() == whole
    labeling.write_labels()
    answered = open_labeling(tmp_path)
    answered.write_labels()
    assert answered.counts == labeling.counts
