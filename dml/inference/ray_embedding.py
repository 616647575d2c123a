"""Embedding of the parts that are missing, on a Ray cluster: Ray Data hands them to copies of the model."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from ray.data import DataContext, from_items

from dml.inference.embedding_files import EmbeddingParts
from dml.inference.loading import load
from dml.ops.freed_memory import keep_freed_memory
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError
from dml.runtime.paths import absolute_path


class PartEmbedder:
    """A copy of the model in a process of the cluster, which embeds one part at a time.

    Args:
        model: path of the model, on a disk that each machine of the cluster sees.
        load_arguments: further arguments of `dml.load`, such as the device.
        fingerprint: fingerprint that the model must have.
        options: further arguments of `dml.inference.ImageEmbedder.embed`.
    """

    def __init__(self, model: str, load_arguments: dict[str, Any], fingerprint: str, options: dict[str, Any]) -> None:
        self.error = ""
        self.options = options
        try:
            self.model = load(model, **load_arguments)
            keep_freed_memory(self.model.device)
            if self.model.fingerprint != fingerprint:
                self.error = f"{model}: a machine of the cluster has another model there, {self.model.fingerprint}"
        except InputError as error:
            self.error = f"on a machine of the cluster: {error}"

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Embed a batch of one part -> its number, its vectors as bytes, and an error's line or an empty string."""
        vectors, error = b"", self.error
        if not error:
            try:
                vectors = self.model.embed([*batch["paths"][0]], **self.options).tobytes()
            except InputError as refused:
                error = str(refused)
        return {"part": [int(batch["part"][0])], "vectors": [vectors], "error": [error]}


def embed_parts_on_ray(
    model: str, load_arguments: dict[str, Any], parts: EmbeddingParts, missing: list[int], options: dict[str, Any]
) -> None:
    """Embed the images of parts on a cluster, and write each part here as soon as it comes back.

    The cluster is the one that the environment variable RAY_ADDRESS names, or else this machine. There is one copy of
    the model for each GPU, or for each CPU where there is no GPU.

    Raises:
        InputError: if an image can't be read, or a machine has another model.
    """
    path = os.path.abspath(model) if os.path.exists(model) else model
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0))
        workers = options["num_workers"] if gpus else 0
        copies = min(gpus or int(resources.get("CPU", 1)), len(missing))
        rows = [
            {"part": part, "paths": [absolute_path(parts.paths[row]) for row in parts.rows(part)]} for part in missing
        ]
        results = from_items(rows, override_num_blocks=len(rows)).map_batches(
            PartEmbedder,
            batch_size=1,
            fn_constructor_args=(path, load_arguments, parts.facts["fingerprint"], {**options, "num_workers": workers}),
            num_gpus=1 if gpus else 0,
            num_cpus=1 + workers,
            concurrency=(1, copies),
        )
        with progress_bar("embedded", sum(len(parts.rows(part)) for part in missing)) as advance:
            for result in results.iter_rows():
                if result["error"]:
                    raise InputError(result["error"])
                part = int(result["part"])
                vectors = np.frombuffer(result["vectors"], np.float32).reshape(len(parts.rows(part)), -1)
                parts.write(part, vectors)
                advance(len(vectors))


@contextmanager
def _cluster() -> Iterator[dict[str, float]]:
    """Connect to the cluster, or start one on this machine, which ends with the ``with`` statement -> its resources."""
    is_ours = not ray.is_initialized()
    if is_ours:
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(include_dashboard=False, logging_level="ERROR")
        signal.signal(signal.SIGTERM, handler)  # Ray has replaced the one that tells how the command goes on
    DataContext.get_current().enable_progress_bars = False
    try:
        yield ray.cluster_resources()
    finally:
        if is_ours:
            ray.shutdown()
