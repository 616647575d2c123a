"""The job of ``dml inspect``: show what a data set holds, what networks find in it, and what may be wrong with it."""

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log10
from typing import NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from dml.commands.backbones import compose_models, evaluate_backbones
from dml.data.images import read_image
from dml.data.overview import describe_copies, find_base_folder, make_overview_table, make_relative
from dml.data.prepared.cache import CacheFolder, hold_preparation_lock
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.subsets import draw_share_of_classes
from dml.data.table import TEST_SPLITS, UNKNOWN, ImageTable
from dml.evaluation.doubtful_labels import find_doubtful_labels
from dml.evaluation.near_duplicates import find_near_duplicates, read_small_pictures
from dml.evaluation.raw_features import Metrics, spread_embeddings
from dml.report.pictures import OTHER, QUERY, SAME, choose_class_rows, draw_sheet
from dml.run.builders import build_table
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import InspectSettings, read_settings
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import console, format_count, in_markup, printable, progress_bar, warn
from dml.training.frozen import FeatureCache

LIST, SHEET = "findings.csv", "sheet.png"


def inspect(config: DictConfig, _folder: RunFolder, overrides: list[str]) -> dict[str, Metrics]:
    """Print what a data set holds, test the features of backbones, and list what may be wrong, with a contact sheet.

    Returns:
        The metrics on the split that a training is tested on at its end, by backbone and projection.
    """
    settings = read_settings(config, InspectSettings)
    model_configs = compose_models(settings, overrides)
    table, whole_table = _read_part(settings)
    folder = make_cache_folder(settings)
    with hold_preparation_lock(folder.path):
        images = _check_and_summarize(settings, table, folder, whole_table)
        for line in describe_copies(table, images):
            warn(line)
        readable = _take_readable(table, images)
        if len(readable) < len(table):
            warn("missing and unreadable files are left out below; dml prepare lists them")
        results, features = evaluate_backbones(settings, readable, folder, model_configs)
        known_first = np.argsort(readable.labels[:, 0] == UNKNOWN, kind="stable")
        rows = np.sort(known_first[np.unique(readable.paths[known_first], return_index=True)[1]])
        compared = readable.take(rows)
        findings = _find_faults(compared, features[rows], _load_pictures(settings, compared, folder), images)
        _write_findings(settings, readable, compared, findings, folder)
    return results


def _read_part(settings: InspectSettings) -> tuple[ImageTable, ImageTable]:
    """Read the data set -> the table, with ``max_images`` of a part of each class, and the table of the whole."""
    whole_table = build_table(settings)
    table = draw_share_of_classes(whole_table, settings.max_images, settings.seed)
    if len(table) < len(whole_table):
        part = f"{len(table):,} of {len(whole_table):,} images"
        console.print(f"[bold]part[/]     {part}, the same share of each class, at least 2 (max_images)")
    return table, whole_table


def _check_and_summarize(
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


def _take_readable(table: ImageTable, images: dict[str, CheckedImage]) -> ImageTable:
    """Return a table of the images that can be read."""
    readable = [not images[path].error for path in table.paths.tolist()]
    if not any(readable):
        first = str(table.paths[0])
        raise InputError(
            f"{table.source}: none of {format_count(len(table), 'image')} can be read, the first: "
            f"{printable(first)}: {images[first].error}"
        )
    return table.take(np.flatnonzero(readable).astype(np.int64))


def _load_pictures(settings: InspectSettings, table: ImageTable, folder: CacheFolder) -> Tensor:
    """Return small pictures (N, 32, 32) of the images, which are kept as the features are."""
    limits = settings.data.limits

    def compute(images: ImageTable, _names: object) -> tuple[dict[str, Tensor], Tensor]:
        with progress_bar("scaled down", len(images)) as advance:
            pictures = read_small_pictures(images.paths.tolist(), advance, limits)
        return {"pictures": pictures}, torch.arange(len(images))

    described = {"pictures": {"background": limits.color}}
    return FeatureCache(folder, warn).load(table, nn.Identity(), described, compute)["pictures"]


COPY, NEAR_DUPLICATE, DOUBTFUL_LABEL = "copy", "near_duplicate", "doubtful_label"
SHOWN = 8
"""The number of nearest images that a contact sheet shows beside one whose label is doubtful."""


class Finding(NamedTuple):
    """What may be wrong with an image, by its row: ``label`` is that of the other image, or the suggested one."""

    issue: str
    score: float
    row: int
    label: int
    remark: str
    shown: list[int]


def _find_faults(
    table: ImageTable, features: Tensor, pictures: Tensor, images: Mapping[str, CheckedImage]
) -> list[Finding]:
    """Find what may be wrong with images (N,) by their features (N, F) and pictures (N, S, S), the surest first.

    Of near duplicates the first in a test split is kept, or else the one with the most pixels.
    """
    labels, embeddings = table.labels[:, 0], spread_embeddings(features)
    checked = [images[path] for path in table.paths.tolist()]
    pixels = np.array([image.width * image.height for image in checked])
    order = np.lexsort((-pixels, ~np.isin(table.split, TEST_SPLITS)))
    findings = []
    near = find_near_duplicates(embeddings, pictures, labels, order)
    groups = near.groups
    for row, other, cosine, bits, score in zip(*(column.tolist() for column in near[:-1]), strict=True):
        remark = f"cosine {cosine:.2f}, {bits} of 256 bits of the hash differ"
        if table.split[row] != table.split[other]:
            remark += f"; in {table.split[row]} and in {table.split[other]}"
        if labels[row] != labels[other]:
            remark += "; of two classes"
        issue = COPY if checked[row].sha256 == checked[other].sha256 else NEAR_DUPLICATE
        findings.append(Finding(issue, score, row, int(labels[other]), remark, [other]))
    doubtful = find_doubtful_labels(embeddings, labels, groups)
    for row, chance, suggested in zip(*map(np.ndarray.tolist, doubtful), strict=True):
        nearest = np.argsort(-(embeddings @ embeddings[row]).numpy())
        shown = nearest[groups[nearest] != groups[row]][:SHOWN].tolist()
        remark = f"{chance:.1%} as probable as by chance"
        findings.append(Finding(DOUBTFUL_LABEL, -log10(max(chance, 1e-30)), row, suggested, remark, shown))
    return findings


def _write_findings(
    settings: InspectSettings, readable: ImageTable, table: ImageTable, findings: Sequence[Finding], folder: CacheFolder
) -> None:
    """Write the list and the contact sheet, and print how many findings there are of each kind."""
    paths, labels = table.paths.tolist(), table.labels[:, 0].tolist()
    names = make_relative(paths, find_base_folder(settings.dataset.root, table))
    lines: list[Sequence[object]] = [("issue", "score", "path", "label", "other_path", "other_label", "remark")]
    rows = []
    for issue in (COPY, NEAR_DUPLICATE, DOUBTFUL_LABEL):
        found = [finding for finding in findings if finding.issue == issue]
        first = f", the first {names[found[0].row]}: {found[0].remark}" if found else ""
        console.print(in_markup(f"{issue.replace('_', ' ')}: {len(found):,}{first}"), soft_wrap=True)
        for number, (_, score, row, label, remark, shown) in enumerate(found):
            other = names[shown[0]] if issue != DOUBTFUL_LABEL else ""
            classes = [table.name_class(value).strip() for value in (labels[row], label)]
            lines.append((issue, f"{score:.3f}", names[row], classes[0], other, classes[1], remark))
            if settings.sheet and number < settings.sheet.findings:
                marks = [SAME if labels[i] == labels[row] else OTHER for i in shown]
                title = f"{issue.replace('_', ' ')}: {' / '.join(dict.fromkeys(classes))}, {remark}"
                rows.append((title, [(paths[row], QUERY), *zip((paths[i] for i in shown), marks, strict=True)]))
    with replacing(folder.path / LIST) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    if settings.sheet:
        chosen = choose_class_rows(readable, settings.sheet.classes, settings.sheet.pictures, settings.sheet.seed)
        rows += [(f"{split}: {title}", [*images]) for split, split_rows in chosen for title, images in split_rows]
        read = functools.partial(read_image, limits=settings.data.limits)
        with replacing(folder.path / SHEET) as partial:
            draw_sheet(rows, partial, read, legend={SAME: "of the class of the first", OTHER: "of another class"})
    written = ", ".join([LIST, *([SHEET] if settings.sheet else []), "features-*.npz"])
    console.print(f"[bold]written[/]  {in_markup(folder.path)}: {in_markup(written)}")
