"""Trainings from Python: `dml.train` takes the words of the shell, and returns the run."""

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from dml.data.table import ImageTable
    from dml.inference.image_embedder import ImageEmbedder

PARTS = ("loss", "sampler", "model", "optimizer", "transform.train", "transform.test")
"""The parts of a configuration that an object may stand for."""


class _Report(type(Path())):  # type: ignore[misc]  # of the system's kind of paths
    """The path of a report, which a notebook shows."""

    def _repr_html_(self) -> str:
        page = escape(self.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 800px; border: 0"></iframe>'


@dataclass(frozen=True)
class Run:
    """A training, finished or stopped, with its folder, as ``python train.py`` writes it."""

    folder: Path
    given_objects: Mapping[str, Any] = field(default_factory=dict, repr=False)  # and the table, as `resume` needs them

    @property
    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json: {"level0/recall@1": ...}; empty for a run that was stopped before its test."""
        run = RunFolder(self.folder)
        return run.metrics() if run.is_finished else {}

    def load(self, **arguments: Any) -> "ImageEmbedder":
        """Open the trained model, with the objects of the training; the arguments are those of `dml.load`."""
        from dml.inference import load
        from dml.run.given import giving

        with giving(self.given_objects):
            return load(self.folder, **arguments)

    def report(self) -> Path:
        """Return the path of report.html, which a notebook shows as the page."""
        path = RunFolder(self.folder).report_file
        if not path.is_file():
            raise InputError(f"{path}: not there; a finished run with evaluation.report has one")
        return _Report(path)

    def resume(self, overrides: Sequence[str] = (), *, quiet: bool = False) -> "Run":
        """Go on where the run stopped -> the same run; see `train` for the arguments."""
        return _train([f"resume={self.folder}", *overrides], None, self.given_objects, quiet)

    def _repr_html_(self) -> str:
        from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES

        rows = [
            f"<tr><td>{escape(name)}</td><td>{value:.4f}</td></tr>"
            for name, value in self.metrics.items()
            if name.startswith("level0/") and not name.endswith(QUERIES_WITHOUT_POSITIVES)
        ]
        result = f"<table>{''.join(rows)}</table>" if rows else "<p>stopped before its test; run.resume() goes on</p>"
        return f"<p>{escape(str(self.folder))}</p>{result}"


def train(
    overrides: Sequence[str] = (),
    *,
    table: "ImageTable | None" = None,
    objects: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Train and test a model, as ``dml train`` does with the same words: the same checks, folder and digits.

    Ctrl-C stops after the step in hand; the run that is returned then has no metrics, and `Run.resume` goes on.

    >>> import dml
    >>> run = dml.train(["dataset=folder", "dataset.root=photos", "loss=rll"])  # doctest: +SKIP
    >>> run.metrics["level0/recall@1"]  # doctest: +SKIP
    0.71

    Args:
        overrides: words of the command line, such as ["loss=rll", "seed=1"].
        table: images with their labels and splits, in place of ``dataset``; see `dml.ImageTable.from_frame`.
        objects: objects of one's own in place of "loss", "sampler", "model", "optimizer", "transform.train" and
            "transform.test": what the ``_target_`` of that part makes, such as a module for the loss, of which each
            head gets a copy.
        folder: folder of the run; None takes the one that ``dml train`` would.
        quiet: whether to print nothing.
    """
    given_objects = {**(objects or {}), **({} if table is None else {"table": table})}
    if unknown := given_objects.keys() - {*PARTS, "table"}:
        raise InputError(f"objects: {', '.join(sorted(unknown))}; an object stands for one of {', '.join(PARTS)}")
    words = [*overrides, *(["dataset=table"] if table is not None else [])]
    for part in given_objects.keys() - {"table"}:
        name = type(given_objects[part]).__qualname__
        words += [f"~{part}", f"+{part}._target_=dml.run.given.take", f"+{part}.part={part}", f"+{part}.name={name}"]
    return _train(words, None if folder is None else Path(folder), given_objects, quiet)


def _train(words: list[str], folder: Path | None, given_objects: Mapping[str, Any], quiet: bool) -> Run:
    from dml.commands.hydra_command import run_from_python
    from dml.run.config_folders import quote
    from dml.run.given import giving

    if folder is not None:
        words = [*words, f"hydra.run.dir={quote(folder)}"]
    with giving(given_objects), redirect_stdout(io.StringIO()) if quiet else nullcontext():
        return Run(run_from_python("train", words), given_objects)
