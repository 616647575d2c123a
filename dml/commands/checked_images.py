"""What the commands that look at a data set as it is have in common: its part, the check of its images, a network."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from dml.data.image_files.images import suggest_slashes
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.split_overview import make_overview_table
from dml.data.subsets import draw_share_of_classes
from dml.data.table import TEST_SPLITS, ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_model, build_table
from dml.run.building import build
from dml.run.feature_source import FeatureSource
from dml.run.settings import AuditSettings, InspectSettings, Settings, read_settings
from dml.run.stages import find_stage
from dml.runtime.console import console, progress_bar, warn
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.text import format_count, printable
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint
from dml.training.frozen import unpack_inputs


def read_part(settings: InspectSettings | AuditSettings) -> tuple[ImageTable, ImageTable]:
    """Read the data set -> the table, with ``max_images`` of a part of each class, and the table of the whole.

    Raises:
        InputError: if the data set has a fault, or ``max_images`` isn't a number above 0.
    """
    whole_table = build_table(settings)
    table = draw_share_of_classes(whole_table, settings.max_images, settings.seed)
    if len(table) < len(whole_table):
        number, total = len(table), len(whole_table)
        console.print(
            f"[bold]part[/]     {number:,} of {total:,} images, the same share of each class, at least 2 (max_images)"
        )
    return table, whole_table


def check_and_summarize(
    settings: InspectSettings | AuditSettings,
    table: ImageTable,
    folder: CacheFolder,
    whole_table: ImageTable,
) -> dict[str, CheckedImage]:
    """Read and decode each image once, and print what the splits hold; ``dml prepare`` and later calls use the results.

    The caller holds the lock of the folder. Only a table of the whole data set can be written to ``table.parquet``.
    """
    with progress_bar("verified", len({*table.paths.tolist()})) as advance:
        images = check_images(
            table,
            folder,
            processes=settings.processes,
            advance=advance,
            warn=warn,
            limits=settings.data.limits,
        )
    is_whole = len(table) == len(whole_table) and not settings.quick
    dataset = settings.dataset
    if is_whole:
        # with folds, the splits that its lists give, as dml prepare writes them
        listed = build_table(replace(settings, dataset=replace(dataset, folds=None))) if dataset.folds else table
        write_table(folder, listed, images)
    console.print(make_overview_table(table, images))
    return images


def take_readable(table: ImageTable, images: dict[str, CheckedImage]) -> ImageTable:
    """Return a table of the images that can be read.

    Raises:
        InputError: if none can.
    """
    readable = [not images[path].error for path in table.paths.tolist()]
    if not any(readable):
        first = str(table.paths[0])
        raise InputError(
            f"{table.source}: none of {format_count(len(table), 'image')} can be read, the first: "
            f"{printable(first)}: {images[first].error}{suggest_slashes(first)}"
        )
    return table.take(np.flatnonzero(readable).astype(np.int64))


def set_for_readable(settings: Settings) -> Settings:
    """Return settings for images that could all be read before: one that can't be any more is an error."""
    return replace(settings, data=replace(settings.data, on_corrupt="raise"))


def build_seeded_model(model_config: DictConfig, seed: int) -> EmbeddingModel:
    """Build a model, whose random weights are the same each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model: EmbeddingModel = build(model_config)
    return model


GROUPS = (("train",), ("val",), TEST_SPLITS)
"""Splits that are embedded together; dml inspect keeps the features of the same groups."""
BLOCK = 4096


@dataclass(frozen=True)
class AuditNetwork:
    """A network that embeds the images of an audit.

    Args:
        model: the network that embeds.
        model_config: configuration of the network.
        is_trained: whether the network comes from a checkpoint: then its heads embed, otherwise its backbone.
        description: the network in words, for the page.
    """

    model: EmbeddingModel
    model_config: DictConfig
    is_trained: bool
    description: str

    def embed(self, settings: Settings, table: ImageTable, folder: CacheFolder) -> Tensor:
        """Return the L2-normalized embeddings (N, D) of images; the features of the backbone are kept in the folder."""
        source = FeatureSource(settings, self.model_config, self.model, folder)
        embed = partial(self._embed_by_heads, source) if self.is_trained else source.load_raw
        rows = [part for splits in GROUPS if len(part := table.rows(*splits))]
        embeddings = torch.cat([embed(table.take(part)) for part in rows])
        return embeddings[torch.from_numpy(np.argsort(np.concatenate(rows)))]

    @torch.no_grad()
    def _embed_by_heads(self, source: FeatureSource, table: ImageTable) -> Tensor:
        inputs = source.load_inputs(table)
        self.model.eval().cpu()
        blocks = []
        for values in torch.split(inputs.values, BLOCK):
            embeddings = self.model.embed_inputs(unpack_inputs(values, inputs.shapes))
            blocks.append(self.model.concatenate({head: embeddings[head] for head in self.model.chosen_heads}))
        return torch.cat(blocks)


def build_backbone_network(settings: Settings) -> AuditNetwork:
    """Build the backbone of ``model``, as it is before any training.

    Raises:
        InputError: if weights can't be had.
    """
    model = build_seeded_model(settings.model, settings.seed)
    name = settings.model.backbone.get("name") or str(settings.model.backbone._target_).rpartition(".")[2]
    return AuditNetwork(model, settings.model, is_trained=False, description=f"features of {name} as it was pretrained")


def build_network(config: DictConfig) -> AuditNetwork:
    """Build the network that ``checkpoint`` names, or else the backbone of ``model``.

    Raises:
        InputError: if the checkpoint can't be used, or weights can't be had.
    """
    settings = read_settings(config, AuditSettings)
    if not settings.checkpoint:
        return build_backbone_network(settings)
    path = expand_home(settings.checkpoint)
    checkpoint = read_checkpoint(path, lazily=True)
    stage = find_stage(config, TrainingProgress.from_checkpoint(checkpoint).stage).settings
    if not lacks_weights(checkpoint) and "weights" in stage.model.backbone:
        stage.model.backbone.weights = None
    trained = build_model(stage)
    if not isinstance(trained, EmbeddingModel):
        raise InputError(f"checkpoint={path}: a recurrent network embeds neighborhoods, not images; give another one")
    load_model(trained, path)
    name = path.absolute().parents[1].name if path.parent.name == "checkpoints" else path.name
    return AuditNetwork(trained, stage.model, is_trained=True, description=f"the network of {name}")
