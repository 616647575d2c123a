"""Print the cost of local neighborhood sampling beside that of a training step, and the cost of the other samplers.

python scripts/bench_sampling.py              # a tenth of Stanford Online Products, half a minute on two cores
python scripts/bench_sampling.py 59551        # its whole training split, 59,551 images; two minutes

The embeddings are synthetic, with 512 dimensions, around the centers of classes of 5 or 6 images; K = 16, batches of
128. This project's search and FAISS's run in turns in one process, so that a change of the machine's speed affects
both.
"""

import sys
from itertools import islice
from statistics import median
from typing import Any

import faiss
import numpy as np
from measuring import AddedMemory, time_call, time_in_turns
from numpy.typing import NDArray

from dml.data.stream import BatchSampler
from dml.retrieval.search import nearest_neighbors
from dml.samplers.class_balanced import ClassBalancedSampler
from dml.samplers.hard_class import HardClassSampler
from dml.samplers.hierarchical import HierarchicalSampler
from dml.samplers.local_neighborhood import LocalNeighborhoodSampler, hard_shares

SIZE, CLASS, K, BATCH = 512, 5.26, 16, 128
ROUNDS, BATCHES = 3, 200
STEP = 0.25
"""Seconds that a ResNet-50 takes for a batch of 128 on a GPU."""

Rows = NDArray[np.float32]


def draw_items(images: int) -> tuple[Rows, NDArray[np.int64]]:
    """Draw embeddings (N, 512) of unit length, and labels (N, 2): classes, and twelve super-classes."""
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.arange(images) % round(images / CLASS))
    embeddings = rng.standard_normal((images, SIZE), dtype=np.float32)
    embeddings += rng.standard_normal((classes.max() + 1, SIZE), dtype=np.float32)[classes]
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings, np.stack([classes, classes % 12], axis=1)


def search_bare(embeddings: Rows) -> Any:
    """Search with FAISS alone for the row itself and the K nearest neighbors of each row."""
    index: Any = faiss.IndexFlatIP(SIZE)
    index.add(embeddings)
    return index.search(embeddings, K + 1)


def time_batch(sampler: BatchSampler) -> float:
    """Return the median milliseconds of an epoch's first batches, each with its share of the epoch's start."""
    times = []
    for epoch in range(ROUNDS):
        sampler.set_epoch(epoch)
        times.append(1000 * time_call(lambda: list(islice(sampler, BATCHES))) / min(BATCHES, len(sampler)))
    return median(times)


def main() -> None:
    """Measure everything and print the table."""
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    embeddings, labels = draw_items(images)
    print(f"{images} images, {labels[:, 0].max() + 1} classes, K = {K}, {faiss.omp_get_max_threads()} threads")

    with AddedMemory() as added:
        table = nearest_neighbors(embeddings, K)[1].numpy()
        local = LocalNeighborhoodSampler(labels, table, BATCH)
        list(islice(local, BATCHES))
    print(f"table and sampler: {added.peak:.0f} MB at most beside the embeddings (limit 200)")

    searches = {"dml": lambda: nearest_neighbors(embeddings, K), "FAISS": lambda: search_bare(embeddings)}
    seconds, bare = time_in_turns(searches, ROUNDS).values()
    ratio = median(a / b for a, b in zip(seconds, bare, strict=True))
    print(f"table: {median(seconds):.1f} s, FAISS alone {median(bare):.1f} s, ratio {ratio:.2f} (limit 1.2)")
    print(f"new table into the sampler: {1000 * time_call(lambda: local.set_neighbors(table)):.0f} ms")

    samplers: dict[str, BatchSampler] = {
        "local neighborhoods": local,
        "class-balanced 64 x 2": ClassBalancedSampler(labels, 64, 2),
        "hierarchical 2 x 32 x 4": HierarchicalSampler(labels, 1, 64, 4),
        "hard classes 64 x 2 of 1000": HardClassSampler(labels, 64, embeddings=embeddings),
    }
    print(f"a step takes {STEP} s; local neighborhoods may take 2 % of it")
    print(f"{'a batch':<30}{'ms':>8}{'% of a step':>13}{'hard negatives':>16}{'usable positives':>18}{'anchors':>9}")
    for name, sampler in samplers.items():
        shares = np.mean([hard_shares(labels, table, batch) for batch in islice(sampler, 20)], axis=0)
        cost = time_batch(sampler)
        print(f"{name:<30}{cost:>8.2f}{cost / STEP / 10:>13.2f}{shares[0]:>16.3f}{shares[1]:>18.3f}{shares[2]:>9.3f}")


if __name__ == "__main__":
    main()
