"""Other models that a training learns from, ``distill.teacher`` and ``compatible.with``: terms of each head's loss."""

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from dml.data.image_files.parts import identify_images
from dml.data.table import ImageTable
from dml.losses.compatibility import InfluenceLoss, class_means
from dml.losses.compose import WeightedSum
from dml.losses.distillation import TeacherLoss
from dml.retrieval.rows import stack_rows
from dml.run import builders, building
from dml.run.config_folders import compose_training, list_network_overrides, pretrained_name
from dml.run.model_builders import count_features, use_features
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import Settings, read_settings
from dml.run.stages import resolve_parts
from dml.run.trained_run import TrainedRun, open_run
from dml.runtime.console import warn
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.text import printable
from dml.training.embedders import CHOSEN_HEADS
from dml.training.frozen import FeatureCache

PLACES = "give a run's folder, a checkpoint, pretrained:NAME or a .parquet file that dml embed wrote"
PARTS = ("model", "adapter", "recurrent", "transform", "evaluation", "data")
"""The parts of a configuration that decide embeddings."""


def add_teachers(
    settings: Settings, table: ImageTable, embed_dims: Mapping[str, int], losses: Mapping[str, nn.Module]
) -> dict[str, nn.Module]:
    """Return the losses by head with the terms of ``distill`` and ``compatible``; without these as they are.

    If the sizes of the heads add up to that of the other model's vectors, each head gets its own part of them.
    """
    distill, compatible = settings.distill, settings.compatible
    sizes = [*embed_dims.values()]
    has_labels = distill.labels or distill.teacher is None
    terms: dict[str, dict[str, nn.Module]] = {head: {"loss": losses[head]} if has_labels else {} for head in losses}
    for key, place in (("distill.teacher", distill.teacher), ("compatible.with", compatible.with_)):
        if place is None:
            continue
        vectors = _read_vectors(key, place, settings, table)
        adds_up = sum(sizes) == vectors.shape[1]
        if key == "compatible.with" and not adds_up:
            line = f"{key}={place}: its embeddings have {vectors.shape[1]} numbers, the heads' {dict(embed_dims)}"
            raise InputError(f"{line}; choose model.heads and model.embed_dim so that they add up")
        if key == "compatible.with" and settings.heads.choose and len(sizes) > 1:
            raise InputError(f"{key}={place}: heads.choose=true may leave out some of it; heads.choose=false")
        parts = torch.split(vectors, sizes, dim=1) if adds_up else [vectors] * len(sizes)
        for head, part in zip(embed_dims, parts, strict=True):
            if key == "distill.teacher":
                known = {"embedding_dim": embed_dims[head], "teacher_dim": part.shape[1]}
                filled_in = {name: known[name] for name in distill.loss if OmegaConf.is_missing(distill.loss, name)}
                terms[head]["teacher"] = TeacherLoss(building.build(distill.loss, **filled_in), part)
            else:
                means = class_means(part, torch.from_numpy(table.labels[:, 0]))
                terms[head]["compatible"] = InfluenceLoss(means, compatible.scale)
    weights = {"loss": 1.0, "teacher": distill.weight, "compatible": compatible.weight}
    return {
        head: losses[head] if [*parts] == ["loss"] else WeightedSum(parts, {name: weights[name] for name in parts})
        for head, parts in terms.items()
    }


def _read_vectors(key: str, place: str, settings: Settings, table: ImageTable) -> Tensor:
    """Return another model's vectors (N, E) of the images of a table; NaN for an image that can't be read."""
    if place.endswith(".parquet"):
        return _read_file(key, place, table)
    if (name := pretrained_name(place)) is None:
        return _embed(settings, open_run(key, place, trust=settings.trust, places=PLACES), table)
    with torch.random.fork_rng(devices=()):  # so that a run draws the same numbers whether they are stored or not
        return _embed(settings, _build_pretrained(place, name), table)


def _read_file(key: str, place: str, table: ImageTable) -> Tensor:
    """Return the vectors (N, E) of the images of a table in a file that ``dml embed`` wrote."""
    try:
        with pq.ParquetFile(expand_home(place), page_checksum_verification=True) as file:
            stored = file.read(columns=["path", "vector"])
        vectors, root = stack_rows(stored.column("vector")), (stored.schema.metadata or {}).get(b"root", b"").decode()
        paths = identify_images(os.path.join(root, path) for path in stored.column("path").fill_null("").to_pylist())
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{key}={place}: not such a file, or damaged ({error}); {PLACES}") from error
    row_of_path = {path: row for row, path in enumerate(paths)}
    rows = [row_of_path.get(path, -1) for path in identify_images(table.paths.tolist())]
    if missing := rows.count(-1):
        line = f"{key}={place}: lacks {missing:,} of {len(rows):,} training images"
        raise InputError(f"{line}, such as {printable(table.paths[rows.index(-1)])}")
    return torch.from_numpy(vectors[rows])


def _build_pretrained(place: str, name: str) -> TrainedRun:
    """Build a pretrained network whose pooled features are the embedding, as `dml.pretrained` does."""
    config = compose_training(["transform=imagenet", *list_network_overrides(name)])
    use_features(config.model, count_features(config.model.backbone, config.transform.size))
    parts = resolve_parts(config, [str(key) for key in config if key not in PARTS])
    composed = read_settings(OmegaConf.create(parts), Settings)
    return TrainedRun(place, composed, builders.build_model(composed), place)


def _embed(settings: Settings, run: TrainedRun, table: ImageTable) -> Tensor:
    """Return a model's vectors (N, E) of images: those that an earlier run stored, or else computed and stored."""

    def compute(images: ImageTable, names: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        embedded = run.embed(settings, images, limit_test_batches=1.0)
        return {names[0]: embedded.embeddings[CHOSEN_HEADS]}, embedded.rows

    described = {"model": run.fingerprint, "color": settings.data.limits.color, "precision": settings.trainer.precision}
    folder = None if settings.data.cache is None else make_cache_folder(settings)
    return FeatureCache(folder, warn).load(table, run.model, {"vectors": described}, compute)["vectors"]
