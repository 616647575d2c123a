"""Plants errors in a copy of a data set's table, and measures how many of them an audit finds at which precision.

python scripts/audit_planted_errors.py dataset=emoji
python scripts/audit_planted_errors.py dataset=csv dataset.root=grocery.csv transform.size=112

Planted, with seeds 0, 1 and 2: 1, 5 and 10 % of the labels swapped; 50 copies of images under other names, stored as
JPEG files of another quality and size, half of them in another split; 50 crops of 60 to 90 % of the area, one in four
mirrored, and of 35 to 60 %, stored the same way; 10 classes split into two at random; 10 pairs of classes merged. The
data set itself stays as it is. What the audit finds in it without planted errors counts as a false alarm, and is
printed first; so is what it finds in 27 classes of 12 images. It takes two to three minutes on two cores.
"""

from dml.run import settings as keys
from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image

from dml.commands.audit import collect_images
from dml.commands.checked_images import AuditNetwork, build_network, check_and_summarize, read_part, take_readable
from dml.data.copies import SIDE, measure_traits
from dml.data.image_files.images import read_image
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import hold_preparation_lock
from dml.data.table import UNKNOWN, ImageTable
from dml.evaluation.audit.findings import DIVIDED_CLASS, ISSUES, MIXED_CLASSES, AuditedImages, AuditSettings, Finding
from dml.evaluation.audit.inspection import audit_images, find_neighbors
from dml.evaluation.audit.labels import estimate_label_probabilities, report_divided_classes, report_mixed_classes
from dml.evaluation.audit.near_duplicates import find_duplicate_pairs, report_duplicates
from dml.evaluation.raw_features import spread_embeddings
from dml.run.config_folders import CONF
from dml.run.prepare_job import make_cache_folder

SEEDS = (0, 1, 2)
SHARES = (0.01, 0.05, 0.1)
COPIES = 50
CLASSES = 10
CROPS = ((0.6, 0.9), (0.35, 0.6))
"""Smallest and largest shares of the area of crops."""
LARGEST_SCALE, SMALLEST_SCALE = 0.9, 0.5
BEST_QUALITY, WORST_QUALITY = 95, 40


def main(overrides: list[str]) -> None:
    """Load the data set, plant errors of each kind, and print a table of what is found."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("audit", overrides=[*overrides, "hydra.run.dir=."])
    command = keys.read_settings(config, keys.AuditSettings)
    settings: AuditSettings = instantiate(config.audit)
    network = build_network(config)
    table, whole_table = read_part(command)
    folder = make_cache_folder(command)
    with hold_preparation_lock(folder.path):
        checked = check_and_summarize(command, table, folder, whole_table)
        images = collect_images(command, take_readable(table, checked), checked, folder, network, settings)
    clean = audit_images(images, settings)
    print("without planted errors:", ", ".join(f"{count_issue(clean, issue)} {issue}" for issue in ISSUES))
    for seed in SEEDS:
        few = audit_images(take_few(images, settings, network.embed(command, images.table, folder), seed), settings)
        print("27 classes of 12 images:", ", ".join(f"{count_issue(few, issue)} {issue}" for issue in ISSUES))
    print("| planted | found of planted | all findings | precision | recall |\n| --- | --- | --- | --- | --- |")
    copies = find_duplicate_pairs(images, settings).list_copies(len(images.table))
    for share in SHARES:
        results = [measure_swaps(images, copies, settings, share, seed) for seed in SEEDS]
        flagged, first, suggested = zip(*results, strict=True)
        print_row(f"{share:.0%} of labels swapped", [*flagged])
        print_row("the same, the first n of n planted", [*first])
        print_row("the found ones, with the true class suggested", [*suggested])
    for area in (None, *CROPS):
        name = f"{COPIES} copies" if area is None else f"{COPIES} crops of {area[0]:.0%} to {area[1]:.0%} of the area"
        print_row(name, [measure_copies(command, network, images, folder, settings, seed, area) for seed in SEEDS])
    print_row(f"{CLASSES} classes split", [measure_split_classes(images, settings, seed) for seed in SEEDS])
    print_row(f"{CLASSES} pairs of classes merged", [measure_merged(images, settings, seed) for seed in SEEDS])


def count_issue(findings: list[Finding], issue: str) -> int:
    """Return the number of findings of a kind."""
    return sum(finding.issue == issue for finding in findings)


def print_row(name: str, results: list[tuple[int, int, int]]) -> None:
    """Print the sums over the seeds of (found planted errors, planted errors, findings), and their ratios."""
    num_found, planted, findings = (sum(column) for column in zip(*results, strict=True))
    precision = f"{num_found / findings:.2f}" if findings else "–"
    print(
        f"| {name} | {num_found} of {planted} | {findings} | {precision} | {num_found / max(1, planted):.2f} |",
        flush=True,
    )


def with_labels(images: AuditedImages, labels: np.ndarray) -> AuditedImages:
    """Return the images with other labels of the finest level, which is the only one then."""
    names = tuple(str(label) for label in range(int(labels.max()) + 1))
    table = replace(images.table, labels=labels[:, None], levels=("class",), names=(names,))
    return replace(images, table=table)


def swap_labels(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Give a share of the images the label of another image, drawn at random, of another class."""
    rng = np.random.default_rng((seed, 1))
    swapped = labels.copy()
    known = np.flatnonzero(labels != UNKNOWN)
    for row in rng.choice(known, round(share * len(known)), replace=False):
        candidates = known[labels[known] != labels[row]]
        swapped[row] = labels[rng.choice(candidates)]
    return swapped


def measure_swaps(
    images: AuditedImages, copies: list[list[int]], settings: AuditSettings, share: float, seed: int
) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]:
    """Swap labels, and count what is found: (found, planted, all findings).

    Returns:
        The counts of the doubtful labels; of as many of the least probable labels as there are swaps; and of the found
        swaps whose suggested class is the true one, among all found swaps.
    """
    labels = swap_labels(images.labels, share, seed)
    judgments = estimate_label_probabilities(with_labels(images, labels), copies, settings)
    planted = int((labels != images.labels).sum())
    is_swapped = (labels != images.labels)[judgments.rows]
    is_found = judgments.is_doubtful & is_swapped
    first = np.argsort(judgments.quality, kind="stable")[:planted]
    is_right = judgments.suggested == images.labels[judgments.rows]
    return (
        (int(is_found.sum()), planted, int(judgments.is_doubtful.sum())),
        (int(is_swapped[first].sum()), planted, planted),
        (int((is_found & is_right).sum()), int(is_found.sum()), int(is_found.sum())),
    )


def measure_copies(
    command: keys.AuditSettings,
    network: AuditNetwork,
    images: AuditedImages,
    folder: CacheFolder,
    settings: AuditSettings,
    seed: int,
    area: tuple[float, float] | None = None,
) -> tuple[int, int, int]:
    """Add copies or crops of images -> the numbers of copies found, of copies, and of pairs found."""
    with tempfile.TemporaryDirectory(prefix="dml-audit-") as name:
        rows, copies = write_copies(images.table, Path(name), seed, area)
        copy_features = network.embed(command, copies, CacheFolder(Path(name), name))
        features = torch.cat([network.embed(command, images.table, folder), copy_features])
        traits = torch.from_numpy(measure_traits(copies.paths.tolist(), processes=1, advance=lambda _: None))
        sizes = [read_image(path).shape[:0:-1] for path in copies.paths.tolist()]
    columns: dict[str, Any] = {
        column: np.concatenate([getattr(images.table, column), getattr(copies, column)])
        for column in ("paths", "labels", "split", "benchmark", "content")
    }
    planted = AuditedImages(
        table=replace(images.table, **columns),
        embeddings=spread_embeddings(features, settings.components),
        pictures=torch.cat([images.pictures, traits[:, :-1].reshape(-1, SIDE, SIDE)]),
        contrasts=np.append(images.contrasts, traits[:, -1].numpy()),
        sizes=np.concatenate([images.sizes, np.array(sizes)]),
    )
    pairs = find_duplicate_pairs(planted, settings)
    found_pairs = {*zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    num_found = sum((int(row), len(images.table) + number) in found_pairs for number, row in enumerate(rows))
    return num_found, len(rows), len(report_duplicates(planted, pairs))


def write_copies(
    table: ImageTable, folder: Path, seed: int, area: tuple[float, float] | None
) -> tuple[np.ndarray, ImageTable]:
    """Write copies of images, or crops of a share of their area, as JPEG files -> the rows of the images, and a table.

    Every second copy is in another split than its image.
    """
    rng = np.random.default_rng((seed, 2))
    rows = rng.choice(len(table), COPIES, replace=False)
    splits = sorted({*table.split.tolist()})
    paths, split = [], []
    for number, row in enumerate(rows.tolist()):
        picture = Image.fromarray(read_image(table.paths[row]).permute(1, 2, 0).contiguous().numpy())
        picture = picture if area is None else crop(picture, rng, rng.uniform(*area), mirrors=number % 4 == 3)
        scale = rng.uniform(SMALLEST_SCALE, LARGEST_SCALE)
        width, height = (max(1, round(scale * side)) for side in picture.size)
        paths.append(str(folder / f"copy{number:02}.jpg"))
        picture.resize((width, height), Image.Resampling.BICUBIC).save(
            paths[-1], quality=int(rng.integers(WORST_QUALITY, BEST_QUALITY + 1))
        )
        other_splits = [name for name in splits if name != table.split[row]]
        split.append(str(rng.choice(other_splits)) if other_splits and number % 2 else str(table.split[row]))
    return rows, replace(table.take(rows.astype(np.int64)), paths=np.array(paths), split=np.array(split))


def crop(picture: Image.Image, rng: np.random.Generator, area: float, *, mirrors: bool) -> Image.Image:
    """Take a part of a picture, of up to 1.15 times other proportions."""
    ratio = np.exp(rng.uniform(-np.log(1.15), np.log(1.15)))
    width = min(picture.width, round(picture.width * np.sqrt(area * ratio)))
    height = min(picture.height, round(picture.height * np.sqrt(area / ratio)))
    left, top = rng.integers(0, picture.width - width + 1), rng.integers(0, picture.height - height + 1)
    part = picture.crop((int(left), int(top), int(left) + width, int(top) + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrors else part


def take_few(images: AuditedImages, settings: AuditSettings, features: torch.Tensor, seed: int) -> AuditedImages:
    """Draw 12 images of each of 27 classes that have as many."""
    rng = np.random.default_rng((seed, 5))
    classes, sizes = np.unique(images.labels[images.labels != UNKNOWN], return_counts=True)
    chosen = rng.choice(classes[sizes >= 12], min(27, int((sizes >= 12).sum())), replace=False).tolist()
    drawn = [rng.choice(np.flatnonzero(images.labels == label), 12, replace=False) for label in chosen]
    rows = np.sort(np.concatenate(drawn or [np.arange(2)]))
    return AuditedImages(
        table=images.table.take(rows),
        embeddings=spread_embeddings(features[torch.from_numpy(rows)], settings.components),
        pictures=images.pictures[torch.from_numpy(rows)],
        contrasts=images.contrasts[rows],
        sizes=images.sizes[rows],
    )


def measure_split_classes(images: AuditedImages, settings: AuditSettings, seed: int) -> tuple[int, int, int]:
    """Split classes of at least 4 images into two at random -> the numbers of pairs found, planted, and reported."""
    rng = np.random.default_rng((seed, 3))
    labels = images.labels.copy()
    pairs = set()
    classes, sizes = np.unique(labels[labels != UNKNOWN], return_counts=True)
    for label in rng.choice(classes[sizes >= 4], CLASSES, replace=False).tolist():
        rows = rng.permutation(np.flatnonzero(labels == label))
        new = int(labels.max()) + 1
        labels[rows[: len(rows) // 2]] = new
        pairs.add(frozenset({str(label), str(new)}))
    planted = with_labels(images, labels)
    findings = report_mixed_classes(planted, find_neighbors(planted, settings)[0], [()] * len(labels), settings)
    found_pairs = {frozenset({finding.label, finding.other_label}) for finding in findings}
    return len(pairs & found_pairs), len(pairs), count_issue(findings, MIXED_CLASSES)


def measure_merged(images: AuditedImages, settings: AuditSettings, seed: int) -> tuple[int, int, int]:
    """Merge pairs of classes of at least 5 images -> the numbers of merged classes found, planted, and reported."""
    rng = np.random.default_rng((seed, 4))
    labels = images.labels.copy()
    classes, sizes = np.unique(labels[labels != UNKNOWN], return_counts=True)
    merged = rng.choice(classes[sizes >= 5], (CLASSES, 2), replace=False)
    for label, merged_label in merged.tolist():
        labels[labels == merged_label] = label
    findings = report_divided_classes(with_labels(images, labels), settings)
    found_labels = {finding.label for finding in findings}
    return len({str(label) for label in merged[:, 0]} & found_labels), CLASSES, count_issue(findings, DIVIDED_CLASS)


if __name__ == "__main__":
    main(sys.argv[1:])
