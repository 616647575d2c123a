"""Objects of Python in the place of a configuration's choices: those that `dml.train` was called with."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from dml.data.splits import complete_splits
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

_given_objects: ContextVar[Mapping[str, Any]] = ContextVar("given", default=MappingProxyType({}))


@contextmanager
def giving(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let `take` and `take_table` return these objects in the ``with`` statement."""
    token = _given_objects.set(objects)
    try:
        yield
    finally:
        _given_objects.reset(token)


def take(part: str, name: str, heads: Any = None) -> Any:  # noqa: ARG001 (read where the configuration is)
    """Return a copy of the object that stands for a part of the configuration: each head has a loss of its own.

    Args:
        part: part of the configuration, such as "loss"; "module" for the network of `ImageEmbedder.from_module`.
        name: class of the object, by which a configuration tells runs with different objects apart.
        heads: names of the heads of a model, for those who read them in the configuration.
    """
    if part not in _given_objects.get():
        remedy = f"dml.train(objects={{'{part}': ...}}) takes it"
        if part == "module":
            remedy = "dml.load(FOLDER, module=...) takes it, and for an index dml.Index.load(FOLDER, model)"
        raise InputError(f"{part}: the run was trained with a {name} from Python, which no file holds; {remedy}")
    return copy.deepcopy(_given_objects.get()[part])


def take_table(_root: str | None, *, test_fraction: float | None, val_fraction: float, seed: int) -> ImageTable:
    """Return the table of images that `dml.train` was called with; a reader of ``conf/dataset/table.yaml``.

    The other arguments are those of `dml.data.splits.complete_splits`, which draws the splits that the table lacks.
    """
    if "table" not in _given_objects.get():
        raise InputError("dataset=table: the images are a table from Python; dml.train(table=...) gives it")
    table: ImageTable = _given_objects.get()["table"]
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)
