"""The job of ``dml audit``: find what may be wrong with a data set, and write a page and a file to be edited."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from rich.table import Table
from torch import Tensor, nn

from dml.commands.checked_images import (
    AuditNetwork,
    build_network,
    check_and_summarize,
    read_part,
    set_for_readable,
    take_readable,
)
from dml.data.copies import FORMAT, SIDE, measure_traits
from dml.data.image_files.images import read_image
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import hold_preparation_lock
from dml.data.prepared.verification import CheckedImage
from dml.data.split_overview import find_base_folder, make_relative
from dml.data.table import SPLITS, UNKNOWN, ImageTable
from dml.evaluation.audit.findings import ISSUES, AuditedImages, Finding, read_decided_rows, write_findings
from dml.evaluation.audit.findings import AuditSettings as AuditThresholds
from dml.evaluation.audit.inspection import audit_images, report_broken_images
from dml.evaluation.raw_features import spread_embeddings
from dml.report.audit import AuditReport
from dml.report.page import audit_report
from dml.run.building import build
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import AuditSettings, read_settings
from dml.runtime.console import console, progress_bar, warn
from dml.runtime.errors import InputError
from dml.runtime.files import write_text
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import in_markup
from dml.training.frozen import FeatureCache

PAGE, FILE = "audit.html", "audit.csv"


def audit(config: DictConfig, _folder: RunFolder, _overrides: list[str]) -> list[Finding]:
    """Write what may be wrong with a data set, as a page and as a CSV file to be edited.

    Raises:
        InputError: if an option can't be used, the network can't be had, the data set has a
            fault or fewer than two images that can be read, or another process prepares the data set.
    """
    settings = read_settings(config, AuditSettings)
    thresholds: AuditThresholds = build(settings.audit)
    folder = make_cache_folder(settings)
    output = expand_home(settings.output) if settings.output else folder.path
    read_decided_rows(output / FILE)  # a file that isn't one of an audit is refused before the work
    network = build_network(config)
    table, whole_table = read_part(settings)
    with hold_preparation_lock(folder.path):
        checked = check_and_summarize(settings, table, folder, whole_table)
        images = collect_images(settings, take_readable(table, checked), checked, folder, network, thresholds)
    class_sizes = None if len(table) == len(whole_table) else _count_images(whole_table)
    findings = [*audit_images(images, thresholds, class_sizes), *report_broken_images(table, checked)]
    paths = [*dict.fromkeys(table.paths.tolist())]
    shown_paths = make_relative(paths, find_base_folder(settings.dataset.root, table))
    report = AuditReport(
        facts={
            "Data set": folder.path.name,
            "Images": f"{len(paths):,}",
            "Classes": f"{len(np.setdiff1d(images.labels, UNKNOWN)):,}",
            "Compared by": network.description,
        },
        images=images,
        findings=findings,
        names=dict(zip(paths, shown_paths, strict=True)),
        shown=settings.shown,
        csv_path=str(output / FILE),
    )
    limits = settings.data.limits
    page = audit_report(report, lambda path: read_image(path, limits))
    decided = read_decided_rows(output / FILE)  # the user may have decided on more while the audit ran
    write_findings(output / FILE, findings, report.names, decided)
    write_text(output / PAGE, page)
    _print_summary(findings, len(decided), output)
    return findings


def collect_images(
    settings: AuditSettings,
    readable: ImageTable,
    checked: Mapping[str, CheckedImage],
    folder: CacheFolder,
    network: AuditNetwork,
    thresholds: AuditThresholds,
) -> AuditedImages:
    """Embed the readable images of all splits, each once, and scale them down; both are kept in the cache folder.

    Raises:
        InputError: if there are fewer than two images.
    """
    in_splits = readable.subset(*SPLITS)
    rows = _choose_rows(in_splits)
    table = in_splits.take(rows)
    if len(table) < 2:
        raise InputError(f"{settings.dataset.name}: {len(table)} images that can be read, at least 2 are compared")
    features = network.embed(set_for_readable(settings), table, folder)
    traits = _load_traits(settings, table, folder)
    sizes = [(checked[path].width, checked[path].height) for path in table.paths.tolist()]
    return AuditedImages(
        table=table,
        embeddings=spread_embeddings(features, thresholds.components),
        pictures=traits[:, :-1].reshape(-1, SIDE, SIDE),
        contrasts=traits[:, -1].numpy(),
        sizes=np.array(sizes, dtype=np.int64),
    )


def _count_images(table: ImageTable) -> dict[int, int]:
    """Return the number of images of each class of the finest level."""
    in_splits = table.subset(*SPLITS)
    labels, counts = np.unique(in_splits.labels[_choose_rows(in_splits), 0], return_counts=True)
    return dict(zip(labels.tolist(), counts.tolist(), strict=True))


def _choose_rows(table: ImageTable) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return one row of each image, in the order of the table: one with a label of the finest level, if there is."""
    order = np.argsort(table.labels[:, 0] == UNKNOWN, kind="stable")
    _, first = np.unique(table.paths[order], return_index=True)
    return np.sort(order[first]).astype(np.int64)


def _load_traits(settings: AuditSettings, table: ImageTable, folder: CacheFolder) -> Tensor:
    """Return the traits (N, 1025) of the images, computed once for each state of the files."""
    limits = settings.data.limits

    def compute(images: ImageTable, _names: object) -> tuple[dict[str, Tensor], Tensor]:
        with progress_bar("scaled down", len(images)) as advance:
            traits = measure_traits(
                images.paths.tolist(),
                processes=settings.processes,
                advance=advance,
                limits=limits,
            )
        return {"traits": torch.from_numpy(traits)}, torch.arange(len(images))

    described = {"traits": {"format": FORMAT, "background": limits.color}}
    return FeatureCache(folder, warn).load(table, nn.Identity(), described, compute)["traits"]


def _print_summary(findings: list[Finding], decided: int, output: Path) -> None:
    shown = Table(title="what the audit finds", title_justify="left", title_style="bold")
    for column in ("", "number", "the first"):
        shown.add_column(column, justify="right" if column == "number" else "left", overflow="fold")
    for issue in ISSUES:
        issue_findings = [finding for finding in findings if finding.issue == issue]
        example = " ".join(filter(None, (issue_findings[0].label, issue_findings[0].remark))) if issue_findings else ""
        shown.add_row(issue.replace("_", " "), f"{len(issue_findings):,}", in_markup(example))
    console.print(shown)
    if decided:
        console.print(f"[bold]kept[/]     {decided:,} lines of the earlier audit.csv in which something was filled in")
    console.print(f"[bold]written[/]  {in_markup(output / PAGE)} to look at")
    console.print(f"[bold]written[/]  {in_markup(output / FILE)} to fill in its column action")
