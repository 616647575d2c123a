"""What ``scripts/prepare.py`` does."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dml.data.cache import CacheFolder
from dml.data.cache_build import build_cache
from dml.data.copies import number_contents, number_in_gallery
from dml.data.images import read_image
from dml.data.pngs import cache_folder
from dml.data.prepare import CheckedImage, all_faults, check_images, write_table
from dml.data.table import SPLITS, ImageTable
from dml.data.transforms import Resize
from dml.evaluation.pictures import contact_sheet
from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder
from dml.ops.speed import SpeedMeter

SHOWN = 5
"""Faults of a kind that are listed."""

console = Console(highlight=False, soft_wrap=True)


def prepare(config: DictConfig, _folder: RunFolder, _overrides: list[str]) -> dict[str, list[str]]:
    """Verifies a data set, draws its contact sheets, and writes its table and, if asked, its cache -> the faults.

    Raises:
        InputError: if there are faults and ``dataset.verify``; everything else has been done by then.
    """
    dataset = config.dataset
    resize = Resize(config.mode, config.resize) if config.resize is not None else None
    table: ImageTable = instantiate(dataset.reader)(dataset.root)
    folder = _folder_of(config)
    processes = config.processes or os.cpu_count() or 1
    with _bar("verified", len({*table.paths.tolist()})) as advance:
        images = check_images(table, folder, processes=processes, advance=advance)
    write_table(folder, table, images)
    console.print(_counts(table, dataset.counts or {}))
    _sheets(table, images, folder.path, **config.sheet)
    if resize:
        _cache(folder, resize, images, processes)
    faults = all_faults(table, images, dataset.counts, disjoint=dataset.disjoint)
    _list(faults)
    if dataset.get("queries_in_gallery"):
        found, queries = number_in_gallery(number_contents(table, folder))
        console.print(f"[bold]queries[/]  {found:,} of {queries:,} are in their gallery as files of the same content")
    console.print(f"[bold]written[/]  {escape(str(folder.path))}")
    if faults and dataset.verify:
        number = sum(len(lines) for lines in faults.values())
        raise InputError(f"{dataset.name}: {number:,} faults, listed above (dataset.verify=false accepts them)")
    return faults


def _folder_of(config: DictConfig) -> CacheFolder:
    root, cache = config.dataset.root, config.data.cache
    if root is None and cache == "auto":
        cache = str(cache_folder())
    folder = CacheFolder.of(cache, root, config.dataset.name)
    if folder is None:
        raise InputError("data.cache=null: auto, or the folder to write to")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder.path, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise InputError(f"{folder.path}: can't be written to; give data.cache=FOLDER, also to train.py")
    return folder


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn(f"[bold]{what:9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task, meter = progress.add_task(what, total=total), SpeedMeter()

        def advance(number: int) -> None:
            progress.advance(task, number)
            if meter.advance(number, units=number) and not console.is_terminal:
                console.print(f"{what:9}{meter.done:,} of {total:,}, {meter.line(total - meter.done)}", markup=False)

        yield advance


def _counts(table: ImageTable, published: Mapping[str, Mapping[str, int]]) -> Table:
    """The number of images and of classes in each split beside the published one."""
    shown = Table(title="images and classes", title_justify="left", title_style="bold")
    for name in ("split", "of"):
        shown.add_column(name)
    for name in ("found", "published"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    counts = table.counts()
    for split in SPLITS:
        of_split, expected = counts.get(split, {}), published.get(split, {})
        for i, what in enumerate([*of_split, *(set(expected) - set(of_split))]):
            found, wanted = of_split.get(what, 0), expected.get(what)
            verdict = "" if wanted is None else "[green]same" if found == wanted else "[red]differs"
            shown.add_row(split if i == 0 else "", what, f"{found:,}", "" if wanted is None else f"{wanted:,}", verdict)
        shown.add_section()
    return shown


def _sheets(
    table: ImageTable, images: Mapping[str, CheckedImage], folder: Path, *, classes: int, pictures: int, seed: int
) -> None:
    """A contact sheet of each split: some of its classes, chosen blindly, and some images of each."""
    for split in SPLITS:
        part = table.subset(split)
        readable = np.flatnonzero([not images[path].error for path in part.paths.tolist()])
        part = part.take(readable.astype(np.int64))
        if not len(part):
            continue
        rng = np.random.default_rng(seed)
        of_class = [np.flatnonzero(part.labels[:, 0] == c) for c in _some(np.unique(part.labels[:, 0]), classes, rng)]
        rows = [_some(rows, pictures, rng) for rows in of_class]
        titles = [part.names[0][part.labels[row[0], 0]] if part.names else str(part.labels[row[0], 0]) for row in rows]
        contact_sheet(
            [
                (title, [read_image(part.paths[i]) for i in row.tolist()])
                for title, row in zip(titles, rows, strict=True)
            ],
            folder / f"sheet_{split}.png",
        )


def _some(values: Any, count: int, rng: np.random.Generator) -> Any:
    return np.sort(rng.choice(values, size=min(count, len(values)), replace=False))


def _cache(folder: CacheFolder, resize: Resize, images: Mapping[str, CheckedImage], processes: int) -> None:
    with _bar("decoded", len(images)) as advance:
        files = build_cache(folder, resize, images, processes=processes, advance=advance)
    console.print(
        f"[bold]cache[/]    {escape(str(files.pixels))} ({decimal(files.pixels.stat().st_size)}) for transforms that "
        f"begin with Resize(mode={resize.mode}, size={resize.size})"
    )


def _list(faults: Mapping[str, list[str]]) -> None:
    for kind, lines in faults.items():
        console.print(f"[bold red]{len(lines):,} {kind}[/]")
        for line in lines[:SHOWN]:
            console.print(f"  {line}", markup=False)
        if len(lines) > SHOWN:
            console.print(f"  and {len(lines) - SHOWN:,} more")
