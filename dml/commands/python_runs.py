"""Trainings from Python: `dml.train` takes the words of the shell, and returns the run."""

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml.data.table import ImageTable
from dml.run.config_folders import quote
from dml.runtime.configuration import is_below, key_of
from dml.runtime.errors import InputError, show
from dml.runtime.files import expand_home
from dml.runtime.run_folder import RunFolder, RunState
from dml.runtime.text import printable

if TYPE_CHECKING:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", expand_home(self.folder))
        if not self.folder.is_dir():
            raise InputError(f"{printable(self.folder)}: no run is there; give the folder of one")

    @property
    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json: {"level0/recall@1": ...}; empty for a run that was stopped before its test."""
        run = RunFolder(self.folder)
        if run.state is RunState.NEW:
            raise InputError(f"{printable(self.folder)}: no run; its folder has .hydra/ and checkpoints/")
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
    table: ImageTable | Any = None,
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
        table: images with labels and splits, in place of ``dataset``: a DataFrame, or an `ImageTable` of one.
        objects: objects of one's own in place of "loss", "sampler", "model", "optimizer", "transform.train" and
            "transform.test": what the ``_target_`` of that part makes, such as a module for the loss, of which each
            head gets a copy.
        folder: folder of the run; None takes the one that ``dml train`` would.
        quiet: whether to print nothing.
    """
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(word, str) for word in overrides):
        raise InputError(f"overrides={show(overrides)}: must be a list of texts, such as ['loss=rll', 'seed=1']")
    given_objects = _check_objects({} if objects is None else objects)
    words = [*overrides]
    for part, given in given_objects.items():
        name = quote(type(given).__qualname__)
        words += [f"~{part}", f"+{part}._target_=dml.run.given.take", f"+{part}.part={part}", f"+{part}.name={name}"]
    if "model" in given_objects:
        words.append(f"+model.heads=[{','.join(given_objects['model'].embed_dims)}]")
    ignored = () if table is None else ("dataset", "dataset.root")
    for word in overrides:
        is_of_object = key_of(word) not in given_objects and is_below(key_of(word), given_objects)
        if is_of_object or (key_of(word) in ignored and word != "dataset=table"):
            raise InputError(f"{word}: an object or a table takes its place; leave one of them out")
    if table is not None:
        words.append("dataset=table")
        given_objects["table"] = ImageTable.from_frame(table)
    return _train(words, None if folder is None else expand_home(folder), given_objects, quiet)


def _check_objects(objects: Any) -> dict[str, Any]:
    """Return the objects by the parts of the configuration that they stand for."""
    if not isinstance(objects, Mapping):
        raise InputError(f"objects={show(objects)}: must be a mapping, such as {{'loss': MyLoss()}}")
    for part, given in objects.items():
        has_heads = part != "model" or hasattr(given, "embed_dims")
        if part not in PARTS or isinstance(given, type) or not callable(given) or not has_heads:
            raise InputError(
                f"objects[{part!r}]={show(given)}: must be what a _target_ makes, no name or class, in place of one of "
                f"{', '.join(PARTS)}; an EmbeddingModel for model"
            )
    return {**objects}


def _train(words: list[str], folder: Path | None, given_objects: Mapping[str, Any], quiet: bool) -> Run:
    from dml.commands.hydra_command import run_from_python
    from dml.run.given import giving

    if folder is not None:
        words = [*words, f"hydra.run.dir={quote(folder)}"]
    with giving(given_objects), redirect_stdout(io.StringIO()) if quiet else nullcontext():
        return Run(run_from_python("train", words), given_objects)
