"""FAISS's indexes on a GPU."""

from typing import Any

import faiss
import torch

SCRATCH = 256 * 2**20  # bytes; FAISS would otherwise set aside more than a gigabyte beside the network


def has_gpu() -> bool:
    """Whether FAISS can compute on a GPU."""
    count: int = faiss.get_num_gpus()
    return count > 0


def on_gpu(index: Any) -> Any:
    """Copy a FAISS index to this process's GPU, the only one that it then uses, with `SCRATCH` bytes to work in."""
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(SCRATCH)
    return faiss.index_cpu_to_gpu(resources, torch.cuda.current_device() if torch.cuda.is_available() else 0, index)
