"""What the commands that look at a data set as it is have in common: its part, the check of its images, a network."""

import numpy as np
import torch
from omegaconf import DictConfig

from dml.data.image_files.images import suggest_slashes
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.split_overview import make_overview_table
from dml.data.subsets import draw_share_of_classes
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_table
from dml.run.building import build
from dml.runtime.errors import InputError
from dml.runtime.escaping import printable
from dml.runtime.text.console import console, progress_bar, warn
from dml.runtime.text.counts import format_count


def read_part(config: DictConfig) -> tuple[ImageTable, ImageTable]:
    """Read the data set -> the table, with ``max_images`` of a part of each class, and the table of the whole.

    Raises:
        InputError: if the data set has a fault, or ``max_images`` isn't a number above 0.
    """
    whole_table = build_table(config)
    table = draw_share_of_classes(whole_table, config.max_images, config.seed)
    if len(table) < len(whole_table):
        number, total = len(table), len(whole_table)
        console.print(
            f"[bold]part[/]     {number:,} of {total:,} images, the same share of each class, at least 2 (max_images)"
        )
    return table, whole_table


def check_and_summarize(
    config: DictConfig, table: ImageTable, folder: CacheFolder, whole_table: ImageTable
) -> dict[str, CheckedImage]:
    """Read and decode each image once, and print what the splits hold; ``dml prepare`` and later calls use the results.

    Args:
        config: configuration of the command.
        table: the images to check.
        folder: folder of the prepared files, whose lock is held.
        whole_table: all images of the data set; only a table of all can be written to ``table.parquet``.
    """
    with progress_bar("verified", len({*table.paths.tolist()})) as advance:
        images = check_images(
            table,
            folder,
            processes=config.processes,
            advance=advance,
            warn=warn,
            limits=ImageLimits.from_settings(config.data),
        )
    is_whole = len(table) == len(whole_table) and not config.get("quick")
    dataset = config.dataset
    is_changed = dataset.get("corrections") or dataset.get("class_splits") or dataset.get("planted")
    if is_whole and not is_changed:
        write_table(folder, _read_without_folds(config) if dataset.get("folds") else table, images)
    console.print(make_overview_table(table, images))
    return images


def _read_without_folds(config: DictConfig) -> ImageTable:
    """Read the data set with the splits that its lists give, as ``dml prepare`` does."""
    unfolded: DictConfig = config.copy()
    unfolded.dataset.folds = None
    return build_table(unfolded)


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


def set_for_readable(config: DictConfig) -> DictConfig:
    """Return a configuration for images that could all be read before: one that can't be any more is an error."""
    reading: DictConfig = config.copy()
    reading.data.on_corrupt = "raise"
    return reading


def build_seeded_model(model_config: DictConfig, seed: int) -> EmbeddingModel:
    """Build a model, whose random weights are the same each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model: EmbeddingModel = build(model_config)
    return model
