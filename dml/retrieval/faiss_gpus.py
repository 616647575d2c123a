"""The GPUs of the installed FAISS: `faiss-gpu` has those of the machine, `faiss-cpu` has none."""

from typing import Any

import faiss

LARGEST_K = 2047
"""The largest number of neighbors, and of searched cells, that every version of FAISS accepts on a GPU."""


def copy_to_gpus(index: Any) -> Any:
    """Return a copy of an index on all GPUs of FAISS; None if the index has to be searched on the CPU.

    FAISS has no GPU, none that searches this kind of index, such as HNSW32, or none with enough memory.
    """
    lists: Any = faiss.try_extract_index_ivf(index)
    if not faiss.get_num_gpus() or (lists is not None and lists.nprobe > LARGEST_K):
        return None
    try:
        return faiss.index_cpu_to_all_gpus(index)
    except RuntimeError:  # FAISS says by it that it can't copy the index
        return None
