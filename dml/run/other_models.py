"""Other models that a training uses: the one whose weights it begins with, and a teacher in each head's loss."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from dml.data.contents import identify_images
from dml.data.table import ImageTable
from dml.losses.compose import WeightedSum
from dml.losses.distillation import TeacherLoss
from dml.models.adapters import merge_updates
from dml.models.recurrent import AnyModel
from dml.retrieval.rows import stack_rows
from dml.run import builders, building, loop
from dml.run.config_folders import compose_training, list_network_overrides, pretrained_name
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import Settings, read_settings
from dml.run.stored import extract_stage, resolve_parts
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable, warn
from dml.training.checkpoints import (
    find_checkpoint,
    lacks_weights,
    load_initial_state,
    load_initial_weights,
    load_model,
    read_checkpoint,
)
from dml.training.embedders import CHOSEN_HEADS, Embedded
from dml.training.frozen import FeatureCache

KEY = "distill.teacher"
"""The key that names the run, for error lines."""

PLACES = "give a run's folder, a checkpoint, pretrained:NAME or a .parquet file that dml embed wrote"

PARTS = ("model", "adapter", "recurrent", "transform", "evaluation", "data")
"""The parts of a configuration that decide embeddings."""


def load_beginning(settings: Settings, model: nn.Module, path: Path) -> None:
    """Load the weights that a stage begins with from a checkpoint, which may have been trained with another adapter.

    Updates of LoRA go on as they are if the model has the same ones, at the same scale. Otherwise they are added to the
    weights first.
    """
    checkpoint = read_checkpoint(path, lazily=True)
    shapes = {name: value.shape for name, value in checkpoint["state_dict"].items() if ".lora_" in name}
    present = {f"model.{name}": value.shape for name, value in model.state_dict().items() if ".lora_" in name}
    stage = extract_stage(checkpoint) if shapes else None
    if stage is None or (shapes == present and stage.config.adapter.get("alpha") == settings.adapter.get("alpha")):
        load_initial_weights(model, path)
        return
    unused = [str(key) for key in stage.config if key not in ("adapter", "recurrent")]
    parts = resolve_parts(stage.config, unused)
    _check_foreign(f"training.init={path}", parts, trust=settings.trust)
    foreign = OmegaConf.create(parts)
    adapter, recurrent = foreign.get("adapter"), foreign.get("recurrent")
    with torch.random.fork_rng(devices=()):
        merged = builders.build_model(replace(settings, adapter=adapter, recurrent=recurrent))
    load_model(merged, path)
    merge_updates(merged)
    load_initial_state(model, merged.state_dict(), path)


def _check_foreign(option: str, parts: Mapping[str, Any], *, trust: bool) -> None:
    """Make sure that the parts of another run's configuration build known objects alone, unless the user trusts it."""
    try:
        with building.trusting(trust):
            building.check_values(parts)
    except InputError as error:
        raise InputError(f"{printable(option)}: {error}; trust=true if you trust this file") from error


class TrainedRun(NamedTuple):
    """A run's tested stage and its model, on the CPU, with the fingerprint that the model has in `dml.load`."""

    place: str
    settings: Settings
    model: AnyModel
    fingerprint: str

    def embed(self, settings: Settings, images: ImageTable) -> Embedded:
        """Embed images as the run's test does; the settings of another run say how files are read."""
        trained = self.settings.data
        data = replace(settings.data, background=trained.background)
        reading = replace(self.settings, data=data, dataset=settings.dataset, trainer=settings.trainer)
        embedder, loaded = loop.build_embedder(reading, self.model), loop.build_evaluation_data(reading, images)
        loop.build_testing_trainer(settings, limit_test_batches=1.0).test(embedder, loaded, verbose=False)
        return embedder.embedded


def add_teacher(
    settings: Settings, table: ImageTable, embed_dims: Mapping[str, int], losses: Mapping[str, nn.Module]
) -> dict[str, nn.Module]:
    """Return the losses by head with the term of ``distill``; without a teacher as they are.

    If the sizes of the heads add up to that of the teacher's vectors, each head gets its own part of them.
    """
    distill, sizes = settings.distill, [*embed_dims.values()]
    if distill.teacher is None:
        return dict(losses)
    vectors = _read_vectors(distill.teacher, settings, table)
    parts = torch.split(vectors, sizes, dim=1) if sum(sizes) == vectors.shape[1] else [vectors] * len(sizes)
    weights = ({"loss": 1.0} if distill.labels else {}) | {"teacher": distill.weight}
    sums: dict[str, nn.Module] = {}
    for head, part in zip(embed_dims, parts, strict=True):
        known = {"embedding_dim": embed_dims[head], "teacher_dim": part.shape[1]}
        filled_in = {name: known[name] for name in distill.loss if OmegaConf.is_missing(distill.loss, name)}
        terms = {"loss": losses[head], "teacher": TeacherLoss(building.build(distill.loss, **filled_in), part)}
        sums[head] = WeightedSum({name: terms[name] for name in weights}, weights)
    return sums


def _read_vectors(place: str, settings: Settings, table: ImageTable) -> Tensor:
    """Return another model's vectors (N, E) of the images of a table; NaN for an image that can't be read."""
    if place.endswith(".parquet"):
        return _read_file(place, table)
    if (name := pretrained_name(place)) is None:
        return _embed(settings, _open_run(place, trust=settings.trust), table)
    with torch.random.fork_rng(devices=()):  # so that a run draws the same numbers whether they are stored or not
        return _embed(settings, _build_pretrained(place, name), table)


def _read_file(place: str, table: ImageTable) -> Tensor:
    """Return the vectors (N, E) of the images of a table in a file that ``dml embed`` wrote."""
    try:
        with pq.ParquetFile(expand_home(place), page_checksum_verification=True) as file:
            stored = file.read(columns=["path", "vector"])
        vectors, root = stack_rows(stored.column("vector")), (stored.schema.metadata or {}).get(b"root", b"").decode()
        paths = identify_images(os.path.join(root, path) for path in stored.column("path").fill_null("").to_pylist())
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{KEY}={place}: not such a file, or damaged ({error}); {PLACES}") from error
    row_of_path = {path: row for row, path in enumerate(paths)}
    rows = [row_of_path.get(path, -1) for path in identify_images(table.paths.tolist())]
    if missing := rows.count(-1):
        line = f"{KEY}={place}: lacks {missing:,} of {len(rows):,} training images"
        raise InputError(f"{line}, such as {printable(table.paths[rows.index(-1)])}")
    return torch.from_numpy(vectors[rows])


def _build_pretrained(place: str, name: str) -> TrainedRun:
    """Build a pretrained network whose pooled features are the embedding, as `dml.pretrained` does."""
    config = compose_training(["transform=imagenet", *list_network_overrides(name)])
    builders.use_pooled_features(config)
    parts = resolve_parts(config, [str(key) for key in config if key not in PARTS])
    composed = read_settings(OmegaConf.create(parts), Settings)
    return TrainedRun(place, composed, builders.build_model(composed), place)


def _embed(settings: Settings, run: TrainedRun, table: ImageTable) -> Tensor:
    """Return a model's vectors (N, E) of images: those that an earlier run stored, or else computed and stored."""

    def compute(images: ImageTable, names: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        embedded = run.embed(settings, images)
        return {names[0]: embedded.embeddings[CHOSEN_HEADS]}, embedded.rows

    described = {"model": run.fingerprint, "color": settings.data.limits.color, "precision": settings.trainer.precision}
    folder = None if settings.data.cache is None else make_cache_folder(settings)
    return FeatureCache(folder, warn).load(table, run.model, {"vectors": described}, compute)["vectors"]


def _open_run(place: str, *, trust: bool) -> TrainedRun:
    """Open the folder or the checkpoint of a run, without a change of torch's random numbers."""
    path = expand_home(place)
    folder = RunFolder(path)
    if not any(file.is_file() for file in (path, folder.best_checkpoint, folder.last_checkpoint)):
        raise InputError(f"{KEY}={printable(place)}: no run with a checkpoint is there; {PLACES}")
    path = find_checkpoint(path) if path.is_dir() else path
    checkpoint = read_checkpoint(path, lazily=True)
    stage = extract_stage(checkpoint).for_test(lacks_weights=lacks_weights(checkpoint))
    plain = resolve_parts(stage.config)
    parts = {part: plain.get(part) for part in ("model", "adapter", "recurrent")}
    _check_foreign(f"{KEY}={place}", parts | {"transform": {"test": plain["transform"]["test"]}}, trust=trust)
    settings = stage.settings
    with torch.random.fork_rng(devices=()):
        model = builders.build_model(settings)
    load_model(model, path)
    merge_updates(model)
    return TrainedRun(place, settings, model, builders.make_fingerprint(builders.list_decisive(plain), model))
