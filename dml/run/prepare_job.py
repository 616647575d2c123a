"""The job of ``dml prepare``: verify a data set and write what makes reading it quick."""

import os
from collections.abc import Mapping

import numpy as np
from omegaconf import DictConfig
from rich.filesize import decimal

from dml.data.contents import limit_list_bytes
from dml.data.overview import assign_content_ids, count_queries_in_gallery, make_count_table
from dml.data.prepared.cache import CacheFolder, hold_preparation_lock, make_writable_folder
from dml.data.prepared.cache_build import build_cache
from dml.data.prepared.verification import check_images, list_faults, write_table
from dml.data.table import ImageTable
from dml.data.transforms import Resize
from dml.report.pictures import write_contact_sheets
from dml.run.building import build
from dml.run.settings import PrepareSettings, Settings, read_settings
from dml.runtime.errors import InputError
from dml.runtime.files import clean_up
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import console, format_count, in_markup, printable, progress_bar, warn

PRINTED_FAULTS = 5
"""The number of faults of a kind that are printed."""


def prepare(config: DictConfig, _folder: RunFolder, _overrides: list[str]) -> dict[str, list[str]]:
    """Verify a data set, draw its contact sheets, and write its table and, with ``resize``, its cache -> the faults."""
    settings = read_settings(config, PrepareSettings)
    dataset = settings.dataset
    resize = Resize(settings.mode, settings.resize) if settings.resize is not None else None
    if resize and dataset.root is None and settings.data.cache == "auto":
        raise InputError(
            f"resize={settings.resize}: without dataset.root, a training looks for no stored images of {dataset.name}; "
            "give data.cache=FOLDER, also to train.py"
        )
    with limit_list_bytes(settings.data.max_list_bytes):
        table = build(dataset.reader)(dataset.root)
    folder = make_cache_folder(settings)
    with hold_preparation_lock(folder.path):
        faults = _prepare(settings, table, resize, folder)
    if faults and dataset.verify:
        count = format_count(sum(len(lines) for lines in faults.values()), "fault")
        raise InputError(f"{dataset.name}: {count}, listed above (dataset.verify=false accepts them)")
    return faults


def _prepare(
    settings: PrepareSettings, table: ImageTable, resize: Resize | None, folder: CacheFolder
) -> dict[str, list[str]]:
    """Write the files -> the faults."""
    dataset, compare_contents = settings.dataset, settings.verify == "content"
    processes, limits = settings.processes, settings.data.limits
    clean_up(folder.path)
    with progress_bar("verified", len({*table.paths.tolist()})) as advance:
        images = check_images(
            table,
            folder,
            processes=processes,
            advance=advance,
            compare_contents=compare_contents,
            warn=warn,
            limits=limits,
        )
    write_table(folder, table, images)
    console.print(make_count_table(table, dataset.counts or {}))
    readable_rows = np.flatnonzero([not images[path].error for path in table.paths.tolist()])
    if settings.sheet:
        write_contact_sheets(table.take(readable_rows.astype(np.int64)), folder.path, limits, **vars(settings.sheet))
    if resize:
        with progress_bar("decoded", len(images)) as advance:
            size = build_cache(
                folder,
                resize,
                images,
                processes=processes,
                advance=advance,
                warn=warn,
                limits=limits,
                compare_contents=compare_contents,
            )
        stem = folder.path / f"{resize.mode}-{resize.size}"
        console.print(
            f"[bold]cache[/]    {in_markup(stem)}.*.pixels ({decimal(size)}) for transforms that begin with "
            f"Resize(mode={resize.mode}, size={resize.size})"
        )
    faults = list_faults(table, images, dataset.counts, disjoint=dataset.disjoint)
    _print_faults(faults)
    if dataset.queries_in_gallery:
        in_gallery, queries = count_queries_in_gallery(assign_content_ids(table, folder, limits))
        console.print(
            f"[bold]queries[/]  {in_gallery:,} of {queries:,} are in their gallery as files of the same content"
        )
    console.print(f"[bold]written[/]  {in_markup(folder.path)}")
    return faults


def make_cache_folder(settings: Settings) -> CacheFolder:
    """Make the folder of prepared files that ``data.cache`` names; "auto" without a root is one in the user's cache."""
    root, cache = settings.dataset.root, settings.data.cache
    if root is None and cache == "auto":
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dml")
    if cache is None:
        raise InputError("data.cache=null: auto, or the folder to write to")
    folder = CacheFolder.from_setting(cache, root, settings.dataset.name)
    make_writable_folder(folder.path)
    return folder


def _print_faults(faults: Mapping[str, list[str]]) -> None:
    for kind, lines in faults.items():
        console.print(f"[bold red]{len(lines):,} {kind}[/]")
        for line in lines[:PRINTED_FAULTS]:
            console.print(f"  {printable(line)}", markup=False)
        if len(lines) > PRINTED_FAULTS:
            console.print(f"  and {len(lines) - PRINTED_FAULTS:,} more")
