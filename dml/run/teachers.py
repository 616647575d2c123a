"""Other models that a training learns from, ``distill.teacher`` and ``compatible.with``: terms of each head's loss."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from dml.data.table import ImageTable
from dml.losses.compatibility import InfluenceLoss, class_means
from dml.losses.compose import WeightedSum
from dml.losses.distillation import TeacherLoss
from dml.models.recurrent import AnyModel
from dml.run import builders, building, loop
from dml.run.config_folders import CONF, list_network_overrides, pretrained_name
from dml.run.model_builders import count_features, use_features
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import Settings, read_settings
from dml.run.stages import find_stage, resolve_parts
from dml.run.stored_configuration import extract_configuration, open_stored
from dml.run.tested_checkpoint import find_checkpoint
from dml.runtime.console import warn
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint
from dml.training.embedders import CHOSEN_HEADS
from dml.training.frozen import FeatureCache

PLACES = "give a run's folder, a checkpoint, pretrained:NAME or a .parquet file that dml embed wrote"

MODEL_PARTS = ("model", "adapter", "recurrent", "transform", "evaluation", "data")
"""The parts of a run's configuration that decide its embeddings."""


def add_teachers(
    settings: Settings, table: ImageTable, losses: Mapping[str, nn.Module], embed_dims: Mapping[str, int]
) -> dict[str, nn.Module]:
    """Return the losses by head with the terms of ``distill`` and ``compatible``; without these as they are.

    The vectors of the other model are computed once, with the transform of its test, and kept in the data set's cache
    folder. If the sizes of the heads add up to the size of these vectors, each head gets a part of its own size.

    Args:
        settings: settings of the stage.
        table: table of the training images.
        losses: losses by head.
        embed_dims: sizes of the embeddings by head.

    Raises:
        InputError: if a model or a vector is missing, or an embedding can't be comparable with the earlier one.
    """
    distill, compatible = settings.distill, settings.compatible
    terms: dict[str, dict[str, nn.Module]] = {
        head: {"loss": loss} if distill.labels or distill.teacher is None else {} for head, loss in losses.items()
    }
    if distill.teacher is not None:
        vectors = _read_vectors("distill.teacher", distill.teacher, settings, table)
        for head, part in _split_by_head(vectors, embed_dims).items():
            sizes = {"embedding_dim": embed_dims[head], "teacher_dim": part.shape[1]}
            filled_in = {key: sizes[key] for key in distill.loss if OmegaConf.is_missing(distill.loss, key)}
            terms[head]["teacher"] = TeacherLoss(building.build(distill.loss, **filled_in), part)
    if compatible.with_ is not None:
        for head, part in _split_by_head(_read_old_vectors(settings, table, embed_dims), embed_dims).items():
            means = class_means(part, torch.from_numpy(table.labels[:, 0]))
            terms[head]["compatible"] = InfluenceLoss(means, compatible.scale)
    weights = {"loss": 1.0, "teacher": distill.weight, "compatible": compatible.weight}
    return {
        head: losses[head] if [*parts] == ["loss"] else WeightedSum(parts, {name: weights[name] for name in parts})
        for head, parts in terms.items()
    }


def _split_by_head(vectors: Tensor, embed_dims: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the part of vectors (N, E) for each head, or all of them if the sizes don't add up to E."""
    sizes = [*embed_dims.values()]
    parts: Sequence[Tensor] = [vectors] * len(sizes)
    if sum(sizes) == vectors.shape[1]:
        parts = vectors.split(sizes, dim=1)
    return dict(zip(embed_dims, parts, strict=True))


def _read_old_vectors(settings: Settings, table: ImageTable, embed_dims: Mapping[str, int]) -> Tensor:
    """Return the vectors (N, E) of ``compatible.with``, which have the size of the new embedding."""
    place = str(settings.compatible.with_)
    if settings.heads.choose and len(embed_dims) > 1:
        raise InputError(
            f"compatible.with={place}: heads.choose=true may leave out heads, and embeddings of other sizes can't be "
            "compared; heads.choose=false"
        )
    vectors = _read_vectors("compatible.with", place, settings, table)
    if (size := sum(embed_dims.values())) != vectors.shape[1]:
        heads = " + ".join(f"{name} {dim}" for name, dim in embed_dims.items())
        raise InputError(
            f"compatible.with={place}: its embeddings have {vectors.shape[1]} numbers, the new ones {size} ({heads}); "
            "choose model.heads and model.embed_dim so that they add up"
        )
    return vectors


def _read_vectors(key: str, place: str, settings: Settings, table: ImageTable) -> Tensor:
    """Return another model's vectors (N, E) of the images of a table; NaN for an image that can't be read."""
    if place.endswith(".parquet"):
        return _read_file(key, place, table)
    with torch.random.fork_rng(devices=()):  # so that a run draws the same numbers whether they are stored or not
        name = pretrained_name(place)
        teacher, model = _open_run(key, place, settings) if name is None else _open_pretrained(name)
        return _embed(settings, teacher, model, table)


def _read_file(key: str, place: str, table: ImageTable) -> Tensor:
    """Return the vectors (N, E) of the images of a table in a file that ``dml embed`` wrote."""
    path = expand_home(place)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored = file.read(columns=["path", "vector"])
        paths, column = stored.column("path").to_pylist(), stored.column("vector").combine_chunks()
        vectors = column.flatten().to_numpy().reshape(len(paths), -1)
    except FileNotFoundError as error:
        raise InputError(f"{key}={place}: nothing is there; {PLACES}") from error
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{key}={place}: not a file that dml embed wrote, or damaged ({error})") from error
    row_of_path = {os.path.abspath(name): row for row, name in enumerate(paths)}
    rows = [row_of_path.get(os.path.abspath(name), -1) for name in table.paths.tolist()]
    if missing := rows.count(-1):
        example = printable(table.paths[rows.index(-1)])
        raise InputError(f"{key}={place}: lacks {missing:,} of {len(rows):,} training images, such as {example}")
    return torch.from_numpy(vectors[rows]).float()


def _open_pretrained(name: str) -> tuple[Settings, AnyModel]:
    """Build a pretrained network whose pooled features are the embedding, as `dml.pretrained` does."""
    is_in_command = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_in_command else initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=["transform=imagenet", *list_network_overrides(name)])
    use_features(config.model, count_features(config.model.backbone, config.transform.size))
    teacher = read_settings(config, Settings)
    return teacher, builders.build_model(teacher)


def _open_run(key: str, place: str, settings: Settings) -> tuple[Settings, AnyModel]:
    """Build the model of a run or of a checkpoint, with the settings that decide its embeddings.

    Raises:
        InputError: if there is no run, or its model isn't one of dml's and isn't trusted.
    """
    path = expand_home(place)
    folder = RunFolder(path)
    if not path.is_file() and not (folder.best_checkpoint.is_file() or folder.last_checkpoint.is_file()):
        raise InputError(f"{key}={place}: no run with a checkpoint is there; {PLACES}")
    path = path if path.is_file() else find_checkpoint(folder)
    checkpoint = read_checkpoint(path, lazily=True)
    stored = open_stored(extract_configuration(checkpoint).config)
    stage = find_stage(stored, TrainingProgress.from_checkpoint(checkpoint).stage).config
    parts = resolve_parts(stage, [str(part) for part in stage if part not in MODEL_PARTS])
    if "weights" in parts["model"].get("backbone", {}) and not lacks_weights(checkpoint):
        parts["model"]["backbone"]["weights"] = None
    with building.trusting(None if settings.trust else ()):
        try:
            building.check_targets(parts, "")
        except InputError as error:
            raise InputError(f"{key}={place}: {error}; trust=true if you trust this file") from error
        teacher = read_settings(OmegaConf.create(parts), Settings)
        model = builders.build_model(teacher)
    load_model(model, path)
    return teacher, model


def _embed(settings: Settings, teacher: Settings, model: AnyModel, table: ImageTable) -> Tensor:
    """Return the vectors (N, E) of the images of a table, stored by an earlier run or else computed and stored.

    The images are read with the settings of the run, and transformed by the teacher's.
    """
    data = replace(settings.data, background=teacher.data.background)
    parts = {part: getattr(teacher, part) for part in ("model", "adapter", "recurrent", "transform", "evaluation")}
    reading = replace(settings, data=data, **parts)

    def compute(images: ImageTable, names: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        trainer = loop.build_testing_trainer(settings, limit_test_batches=1.0)
        embedder = builders.build_embedder(reading, model)
        trainer.test(embedder, builders.build_evaluation_data(reading, images), verbose=False)
        return {names[0]: embedder.embedded.embeddings[CHOSEN_HEADS]}, embedder.embedded.rows

    described: Any = {
        **{part: _to_plain(getattr(teacher, part)) for part in ("model", "adapter", "recurrent")},
        "transform": _to_plain(teacher.transform.test),
        "crops": teacher.evaluation.crops,
        "heads": [*model.chosen_heads],
        "precision": settings.trainer.precision,
        "background": data.limits.color,
    }
    folder = None if settings.data.cache is None else make_cache_folder(settings)
    return FeatureCache(folder, warn).load(table, model, {"vectors": described}, compute)["vectors"]


def _to_plain(node: DictConfig | Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
