"""The vectors that a model gives to the images of its data set."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.inference.image_embedder import ImageEmbedder
from dml.run.builders import build_table
from dml.run.evaluators import build_metric_config
from dml.run.settings import Settings, read_settings
from dml.runtime.errors import InputError

METRICS = ["recall", "map@r"]
"""The metrics of the evaluators that `build_evaluator` makes."""


class EmbeddedTable(NamedTuple):
    """The images of a table that could be read, and their vectors (N, D)."""

    table: ImageTable
    vectors: NDArray[np.float32]


def read_data_set(model: ImageEmbedder) -> tuple[Settings, ImageTable]:
    """Read the table of the data set that a model was trained on -> the settings of its training, the table."""
    plain: dict[str, Any] = deepcopy({**model.settings.config})
    if "dataset" not in plain:
        raise InputError(f"{model.settings.name}: dml didn't train it, so it names no data set")
    plain["evaluation"] = plain.get("evaluation", {}) | {"metrics": METRICS, "level_weights": None}
    settings = read_settings(OmegaConf.create({**plain, "recurrent": None}), Settings)
    with model.settings.building():
        return settings, build_table(settings)


def build_evaluator(settings: Settings, table: ImageTable, tested: ImageTable) -> Evaluator:
    """Build the evaluator of recall and MAP@R of tested rows of a table, with the exclusions of the run's test."""
    return Evaluator(tested, replace(build_metric_config(settings, table), recall_at=(1,), clustering=False))


def embed_split(model: ImageEmbedder, table: ImageTable, split: str, **arguments: Any) -> EmbeddedTable:
    """Embed the images of a split, "test" with query and gallery, as the run's test does, without skipped ones."""
    part = table.select_evaluated(split)
    if not len(part):
        raise InputError(f"{table.source or 'data set'}: no images of the split {split}")
    vectors = model.embed(part.paths.tolist(), **arguments)
    readable = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    return EmbeddedTable(part if len(readable) == len(part) else part.take(readable), vectors[readable])
