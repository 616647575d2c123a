"""What ``dml inspect`` looks at: a part of a data set, the check of its images, small pictures, and networks."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dml.data.overview import make_overview_table
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.subsets import draw_share_of_classes
from dml.data.table import ImageTable
from dml.evaluation.near_duplicates import read_small_pictures
from dml.run.builders import build_table
from dml.run.settings import InspectSettings
from dml.runtime.console import console, progress_bar, warn
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable
from dml.training.frozen import FeatureCache


def read_part(settings: InspectSettings) -> tuple[ImageTable, ImageTable]:
    """Read the data set -> the table, with ``max_images`` of a part of each class, and the table of the whole."""
    whole_table = build_table(settings)
    table = draw_share_of_classes(whole_table, settings.max_images, settings.seed)
    if len(table) < len(whole_table):
        part = f"{len(table):,} of {len(whole_table):,} images"
        console.print(f"[bold]part[/]     {part}, the same share of each class, at least 2 (max_images)")
    return table, whole_table


def check_and_summarize(
    settings: InspectSettings, table: ImageTable, folder: CacheFolder, whole_table: ImageTable
) -> dict[str, CheckedImage]:
    """Read and decode each image once, and print what the splits hold; ``dml prepare`` and later calls use the results.

    The caller holds the lock of the folder. Only a table of the whole data set can be written to ``table.parquet``.
    """
    with progress_bar("verified", len({*table.paths.tolist()})) as advance:
        limits, processes = settings.data.limits, settings.processes
        images = check_images(table, folder, processes=processes, advance=advance, warn=warn, limits=limits)
    dataset = settings.dataset
    if len(table) == len(whole_table) and not settings.quick:
        # with folds, the splits that its lists give, as dml prepare writes them
        listed = build_table(replace(settings, dataset=replace(dataset, folds=None))) if dataset.folds else table
        write_table(folder, listed, images)
    console.print(make_overview_table(table, images))
    return images


def take_readable(table: ImageTable, images: dict[str, CheckedImage]) -> ImageTable:
    """Return a table of the images that can be read."""
    readable = [not images[path].error for path in table.paths.tolist()]
    if not any(readable):
        first = str(table.paths[0])
        raise InputError(
            f"{table.source}: none of {format_count(len(table), 'image')} can be read, the first: "
            f"{printable(first)}: {images[first].error}"
        )
    return table.take(np.flatnonzero(readable).astype(np.int64))


def load_pictures(settings: InspectSettings, table: ImageTable, folder: CacheFolder) -> Tensor:
    """Return small pictures (N, 32, 32) of the images, which are kept as the features are."""
    limits = settings.data.limits

    def compute(images: ImageTable, _names: object) -> tuple[dict[str, Tensor], Tensor]:
        with progress_bar("scaled down", len(images)) as advance:
            pictures = read_small_pictures(images.paths.tolist(), advance, limits)
        return {"pictures": pictures}, torch.arange(len(images))

    described = {"pictures": {"background": limits.color}}
    return FeatureCache(folder, warn).load(table, nn.Identity(), described, compute)["pictures"]
