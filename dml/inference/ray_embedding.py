"""Embedding of images on a Ray cluster: Ray Data hands chunks of their list to copies of the model."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.data import DataContext, from_items

from dml.inference.loading import load
from dml.runtime.errors import InputError
from dml.runtime.files import absolute_path
from dml.runtime.processes import keep_freed_memory

CHUNK = 1024  # the smallest number of images in a chunk, which is a whole number of batches


class ChunkEmbedder:
    """A copy of the model in a process of the cluster, which embeds one chunk at a time."""

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
        """Embed a batch of one chunk -> its vectors as bytes, and an error's line or an empty string."""
        vectors, error = b"", self.error
        if not error:
            try:
                vectors = self.model.embed([*batch["paths"][0]], **self.options).tobytes()
            except InputError as refused:
                error = str(refused)
        return {"vectors": [vectors], "error": [error]}


def embed_on_ray(
    model: str, load_arguments: dict[str, Any], fingerprint: str, paths: Sequence[str], options: dict[str, Any]
) -> Iterator[NDArray[np.float32]]:
    """Embed images on a cluster, and yield the vectors (n, D) of each chunk, in the order of the images.

    The cluster is the one that the environment variable RAY_ADDRESS names, or else this machine. There is one copy of
    the model for each GPU, or for each CPU where there is no GPU.
    """
    place = os.path.abspath(model) if os.path.exists(model) else model
    size = -(-CHUNK // options["batch_size"]) * options["batch_size"]
    absolute = [*map(absolute_path, paths)]
    chunks = [{"paths": absolute[start : start + size]} for start in range(0, len(paths), size)]
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0))
        workers = options["num_workers"] if gpus else 0
        results = from_items(chunks, override_num_blocks=len(chunks)).map_batches(
            ChunkEmbedder,
            batch_size=1,
            fn_constructor_args=(place, load_arguments, fingerprint, {**options, "num_workers": workers}),
            num_gpus=1 if gpus else 0,
            num_cpus=1 + workers,
            concurrency=(1, min(gpus or int(resources.get("CPU", 1)), len(chunks))),
        )
        for chunk, result in zip(chunks, results.iter_rows(), strict=True):
            if result["error"]:
                raise InputError(result["error"])
            yield np.frombuffer(result["vectors"], np.float32).reshape(len(chunk["paths"]), -1)


@contextmanager
def _cluster() -> Iterator[dict[str, float]]:
    """Connect to the cluster, or start one on this machine, which ends with the ``with`` statement -> its resources."""
    is_ours = not ray.is_initialized()
    if is_ours:
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(include_dashboard=False, logging_level="ERROR")
        signal.signal(signal.SIGTERM, handler)  # Ray has replaced the one that ends with a line
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    try:
        yield ray.cluster_resources()
    finally:
        if is_ours:
            ray.shutdown()
