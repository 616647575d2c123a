"""Labels of images that a user makes by answers: the log of the answers, and the .csv file that follows from them."""

import json
import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dml.data.table import UNKNOWN
from dml.evaluation.pair_questions import Answer, PairQuestions
from dml.runtime.errors import InputError
from dml.runtime.files import write_text
from dml.runtime.text import format_count, format_csv, printable

logger = logging.getLogger(__name__)


class Labeling:
    """Questions about images, whose answers are on the disk before the next one is asked; several threads may ask.

    The log, ``labels.csv.answers.jsonl`` beside ``labels.csv``, has a line for each answer, and one for each that is
    taken back. Questions and labels follow from it alone, so that a process that is killed loses nothing.

    Args:
        output: .csv file of the labels.
        paths: paths of the images.
        features: (N, F) L2-normalized features of the images, N >= 2.

    Raises:
        InputError: if ``output`` isn't a file of such labels, or its log can't be read.
    """

    def __init__(self, output: Path, paths: Sequence[str], features: NDArray[np.float32]) -> None:
        self.output, self.log, self.paths = output, output.with_name(f"{output.name}.answers.jsonl"), paths
        if output.exists() and not self.log.exists():
            raise InputError(f"--output {printable(output)}: there already, and not by dml label; give another file")
        real = cache(os.path.realpath)  # the folder above a link isn't the one that its path names
        places = (os.path.join(real(folder), file) for folder, file in map(os.path.split, paths))
        self._names = [os.path.relpath(place, real(output.parent)).replace(os.sep, "/") for place in places]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._questions = PairQuestions(torch.from_numpy(features))
        self._lock = RLock()
        self._lines = self._read_log()
        self._version, self._written = 0, -1
        self.counts = {"labeled": 0, "classes": 0}
        if missing := len(self._lines) - len(self._list_answers()):
            logger.warning("%s: without %s about missing images", printable(self.log), format_count(missing, "answer"))

    def ask(self) -> dict[str, Any]:
        """Return the next question: the number of answers before it, and two images, None if all is settled."""
        with self._lock:
            first, second = self._questions.choose(self._list_answers()) or (None, None)
            return {"number": len(self._lines), "first": first, "second": second, **self.counts}

    def reply(self, number: int, *, same: bool | None, undo: bool = False) -> None:
        """Add the answer to the question of a number, None to skip it, or take the answer before it back.

        A number of an earlier question changes nothing: another page has answered it, or the request came twice.
        """
        with self._lock:
            question = self.ask()
            if number != question["number"] or (number == 0 if undo else question["first"] is None):
                return
            names = {key: self._names[question[key]] for key in ("first", "second")} if not undo else {}
            line = {"undo": True} if undo else {**names, "same": same}
            with self.log.open("ab") as file:
                file.write(f"{json.dumps(line)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            _apply(self._lines, line)
            self._version += 1

    def write_labels(self) -> None:
        """Write the labels, unless no answer has come since they were written; an image without one isn't listed.

        A label is the path of one of the images that have it.
        """
        with self._lock:
            version, answers = self._version, self._list_answers()
        if version == self._written:
            return
        classes = self._questions.classify(answers)
        rows = np.flatnonzero(classes != UNKNOWN).tolist()
        labeled = [(self._names[row], self._names[classes[row]]) for row in rows]
        write_text(self.output, format_csv([("path", "label"), *labeled]), on_disk=True)
        self.counts = {"labeled": len(rows), "classes": len(np.unique(classes[rows]))}
        self._written = version

    def _list_answers(self) -> list[Answer]:
        known = (line for line in self._lines if line["first"] in self._numbers and line["second"] in self._numbers)
        return [(self._numbers[line["first"]], self._numbers[line["second"]], line["same"]) for line in known]

    def _read_log(self) -> list[dict[str, Any]]:
        """Read the answers; the rest of a line that a killed process began is cut off."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        content = self.log.read_bytes() if self.log.exists() else b""
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(self.log, end)
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(content[:end].decode(errors="replace").splitlines(), 1):
            try:
                _apply(lines, json.loads(text))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise InputError(f"{printable(self.log)}, line {number}: not an answer; remove the line") from error
        return lines


def _apply(lines: list[dict[str, Any]], line: dict[str, Any]) -> None:
    """Add an answer to those that count, or remove the last one."""
    if "undo" in line:
        lines.pop()
    else:
        lines.append({key: line[key] for key in ("first", "second", "same")})
