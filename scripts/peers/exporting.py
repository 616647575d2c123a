"""Writes what all peers read: the images as files with a list, the batches, the first weights, and some embeddings.

python -m peers.exporting JOB SOURCE    # SOURCE: the .csv file of the photographs, or "emoji"
"""

import csv
import json
import os
import sys
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

from dml.data.contents import read_content
from dml.data.images import LIMITS
from dml.data.table import ImageTable
from dml.run import builders, loop
from dml.run.config_folders import CONF
from dml.run.settings import Settings, read_settings
from peers.dml_peer import compose_job
from peers.protocol import EMBED_DIM, Job, Results, run_job

EMOJI = "emoji"
SPLITS = {"train": "train", "val": "val", "test": "test", "query": "test", "gallery": "test"}
"""Every test image is a query, and is searched for among all others: not all peers know separate lists."""
NOISE = 2.0
"""Length of the noise of the exported embeddings, as a multiple of that of a class's mean: recall@1 is about a half."""


def export_data(job: Job) -> Results:
    """Write images.csv, batches.json, network.pt and embeddings.npz to the folder of the job."""
    source, folder = sys.argv[2], Path(job.folder)
    dataset = ["dataset=emoji"] if source == EMOJI else ["dataset=csv", f'dataset.root="{source}"']
    with initialize_config_dir(str(CONF), version_base="1.3"):
        table = builders.build_table(read_settings(compose("train", overrides=dataset), Settings))
    folder.mkdir(parents=True, exist_ok=True)
    write_list(folder, table)
    settings = compose_job(job)
    table = builders.build_table(settings)
    batches = list_batches(loop.build_data(settings, table).sampler, job.steps)
    (folder / "batches.json").write_text(json.dumps(batches), encoding="utf-8")
    write_weights(folder, builders.build_model(compose_job(job)))  # composed again, which seeds again
    labels = table.select_evaluated("test").labels[:, 0]
    write_embeddings(folder, labels)
    counts = {split: int((table.split == split).sum()) for split in ("train", "val", "test")}
    return {"counts": counts, "test_classes": len(np.unique(labels))}


def write_list(folder: Path, table: ImageTable) -> None:
    """Write the paths, labels and splits of all images; the members of an archive become files."""
    with (folder / "images.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for path, label, split in sorted_by_split(table):
            writer.writerow([write_image(folder, path), f"{label:05}", SPLITS[split]])


def sorted_by_split(table: ImageTable) -> list[tuple[str, int, str]]:
    """Return path, label and split of each image; the classes of the training split have the first numbers."""
    is_training = table.split == "train"
    classes = [*np.unique(table.labels[is_training, 0]), *np.unique(table.labels[~is_training, 0])]
    numbers = {name: number for number, name in reversed([*enumerate(dict.fromkeys(classes))])}
    rows = zip(table.paths.tolist(), table.labels[:, 0].tolist(), table.split.tolist(), strict=True)
    return [(path, numbers[label], split) for path, label, split in rows if split]


def write_image(folder: Path, path: str) -> str:
    """Return the absolute path of an image; a member of an archive is written to a file."""
    if ".zip/" not in path:
        return os.path.abspath(path)
    file = folder / "images" / path.split(".zip/", 1)[1]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(read_content(path, LIMITS.max_image_bytes))
    return str(file.absolute())


def list_batches(sampler: Any, steps: int) -> list[list[int]]:
    """Return the rows in the training split of the first batches of a run."""
    batches: list[list[int]] = []
    for epoch in count():
        sampler.set_epoch(epoch)
        batches += [[int(row) for row in rows] for rows in islice(sampler, steps - len(batches))]
        if len(batches) == steps:
            break
    return batches


def write_weights(folder: Path, model: Any) -> None:
    """Write the network's first weights under the names of `peers.parts.Network`."""
    trunk = {f"trunk.{name}": value for name, value in model.backbone.network.state_dict().items()}
    weights = trunk | {"head.weight": model.heads["H"].embedding.weight.detach()}
    torch.save({name: value.contiguous() for name, value in weights.items()}, folder / "network.pt")


def write_embeddings(folder: Path, labels: NDArray[np.int64]) -> None:
    """Write random embeddings of the test images, each the mean of its class with noise."""
    draws = np.random.default_rng(0)
    _, classes = np.unique(labels, return_inverse=True)
    means = draws.normal(size=(classes.max() + 1, EMBED_DIM))
    embeddings = means[classes] + NOISE * draws.normal(size=(len(labels), EMBED_DIM))
    np.savez(folder / "embeddings.npz", embeddings=embeddings.astype(np.float32), labels=labels)


if __name__ == "__main__":
    run_job({"export": export_data})
