"""What the commands that look at a data set as it is have in common: its part, the check of its images, a network."""

from dataclasses import replace

import numpy as np
import torch
from omegaconf import DictConfig

from dml.data.class_splits import draw_share_of_classes
from dml.data.image_files.images import suggest_slashes
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.split_overview import make_overview_table
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_table
from dml.run.building import build
from dml.run.settings import AuditSettings, InspectSettings, Settings, ShiftSettings
from dml.runtime.console import console, progress_bar, warn
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable


def read_part(settings: InspectSettings | AuditSettings | ShiftSettings) -> tuple[ImageTable, ImageTable]:
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
    settings: InspectSettings | AuditSettings | ShiftSettings,
    table: ImageTable,
    folder: CacheFolder,
    whole_table: ImageTable,
) -> dict[str, CheckedImage]:
    """Read and decode each image once, and print what the splits hold; ``dml prepare`` and later calls use the results.

    Args:
        settings: settings of the command.
        table: the images to check.
        folder: folder of the prepared files, whose lock is held.
        whole_table: all images of the data set; only a table of all can be written to ``table.parquet``.
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
    is_changed = dataset.corrections or dataset.class_splits or dataset.planted
    if is_whole and not is_changed:
        write_table(folder, _read_without_folds(settings) if dataset.folds else table, images)
    console.print(make_overview_table(table, images))
    return images


def _read_without_folds(settings: Settings) -> ImageTable:
    """Read the data set with the splits that its lists give, as ``dml prepare`` does."""
    return build_table(replace(settings, dataset=replace(settings.dataset, folds=None)))


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
