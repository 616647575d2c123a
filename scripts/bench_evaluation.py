"""Print the cost of exact evaluation beside that of the work that no evaluation can avoid.

python scripts/bench_evaluation.py                # half an hour on two cores
python scripts/bench_evaluation.py --scale 0.1    # a minute

The embeddings are random, with 512 dimensions. There are as many as in the test splits of SOP (60,502 images of 11,316
classes in 12 super-classes) and of iNaturalist-full (136,093 images, seven levels). Memory is what a call adds to the
process.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import faiss
import numpy as np
import sklearn.metrics  # noqa: F401 - NMI imports it when it is first computed; bench_start.py measures imports
import torch
from measuring import AddedMemory, time_call

from dml.evaluation import evaluate
from dml.metrics.clustering import nmi
from dml.retrieval.kmeans_clusters import kmeans

SIZE = 512
SOP = (60_502, (11_316, 12))
INATURALIST = (136_093, (2_452, 1_600, 500, 150, 40, 15, 6))
RECALL_AT = (1, 10, 100, 1000)
RANKING = ("recall", "ap", "map@r", "r_precision", "h_ap", "ndcg", "asi")
ALL: dict[str, Any] = {"metrics": RANKING, "recall_at": RECALL_AT, "clustering": False}
BLOCK, ROWS = 1024, 16
ITERATIONS = 20


class Cost(NamedTuple):
    """Seconds on the clock, seconds of all processors, and megabytes added at most."""

    seconds: float
    processors: float
    megabytes: float


def measure(work: Callable[[], Any]) -> Cost:
    """Measure what one call takes."""
    with AddedMemory() as added:
        used = process_time()
        seconds = time_call(work)
        processors = process_time() - used
    return Cost(seconds, processors, added.peak)


def random_items(number: int, classes: tuple[int, ...], scale: float = 1.0) -> tuple[Any, Any]:
    """Draw embeddings (N, 512) of unit length, and labels (N, L) of a tree in random order."""
    rng = np.random.default_rng(0)
    number, finest = round(number * scale), max(2, round(classes[0] * scale))
    levels, classes_below = [rng.permutation(np.arange(number) % finest)], finest
    for coarser in classes[1:]:
        levels.append(levels[-1] * min(coarser, classes_below) // classes_below)
        classes_below = min(coarser, classes_below)
    labels = np.stack(levels, axis=1)
    embeddings = rng.standard_normal((number, SIZE), dtype=np.float32)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), labels


def multiply_and_sort(embeddings: Any) -> None:
    """Compute all similarities, and sort their values in place with one thread for each processor."""
    similarities = np.empty((BLOCK, len(embeddings)), dtype=np.float32)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for start in range(0, len(embeddings), BLOCK):
            block = embeddings[start : start + BLOCK]
            np.matmul(block, embeddings.T, out=similarities[: len(block)])
            parts = [similarities[first : first + ROWS] for first in range(0, len(block), ROWS)]
            list(threads.map(np.ndarray.sort, parts))


def search_flat(embeddings: Any, k: int) -> None:
    """Search with FAISS alone."""
    index: Any = faiss.IndexFlatIP(SIZE)
    index.add(embeddings)
    for start in range(0, len(embeddings), 16_384):
        index.search(embeddings[start : start + 16_384], k)


def cluster_bare(embeddings: Any, clusters: int) -> None:
    """Cluster all points with FAISS's k-means alone, and assign them to the last means."""
    points = {"min_points_per_centroid": 1, "max_points_per_centroid": len(embeddings)}
    machine: Any = faiss.Kmeans(SIZE, clusters, niter=ITERATIONS, seed=0, **points)
    machine.train(embeddings)
    machine.assign(embeddings)


def show(name: str, cost: Cost, bare: Cost | None = None, limit: float | None = None) -> Cost:
    """Print a cost as a line of the table, and return the cost."""
    line = f"{name:<42}{cost.seconds:>9.1f}{cost.processors:>9.1f}{cost.megabytes:>7.0f}"
    if bare is not None:
        line += f"{cost.seconds / bare.seconds:>8.2f}{cost.processors / bare.processors:>8.2f}"
    print(line + (f"{limit:>7.1f}" if limit else ""), flush=True)
    return cost


def show_ratios(name: str, bare: Callable[[], Any], limit: float, works: dict[str, Callable[[], Any]]) -> None:
    """Print what each work costs beside a bare one, which runs before and after: the machine's speed changes."""
    before, costs, after = measure(bare), {label: measure(work) for label, work in works.items()}, measure(bare)
    mean = Cost(*(sum(pair) / 2 for pair in zip(before, after, strict=True)))
    show(name, mean)
    for label, cost in costs.items():
        show(label, cost, mean, limit)


def measure_sop(scale: float) -> None:
    """Measure every part of an evaluation at one size, then how the rankings grow with the size."""
    embeddings, labels = random_items(*SOP, scale)
    show_ratios(
        "product and sort",
        lambda: multiply_and_sort(embeddings),
        1.2,
        {
            "all ranking metrics, two levels": lambda: evaluate(embeddings, labels, **ALL),
            "the same, finest level alone": lambda: evaluate(embeddings, labels[:, 0], **ALL),
        },
    )
    for recall_at in ((1, 2, 4, 8), RECALL_AT):
        k, alone = max(recall_at), partial(evaluate, embeddings, labels, metrics=["recall"], recall_at=recall_at)
        bare = partial(search_flat, embeddings, k + 1)
        show_ratios(f"FAISS search, k = {k + 1}", bare, 1.2, {f"recall@K alone, K up to {k}": alone})
    clusters = len(np.unique(labels[:, 0]))
    show_ratios(
        f"FAISS k-means, {clusters} clusters",
        lambda: cluster_bare(embeddings, clusters),
        1.1,
        {"NMI": lambda: nmi(kmeans(embeddings, clusters, iterations=ITERATIONS), labels[:, 0])},
    )
    smaller = None
    for part in (4, 2, 1):
        cost = measure(partial(evaluate, *random_items(*SOP, scale / part), **ALL))
        smaller = show(f"all ranking metrics, N / {part}", cost, smaller)


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="share of the images and classes")
    scale: float = parser.parse_args().scale
    print(f"{torch.get_num_threads()} threads")
    print(f"{'':<42}{'seconds':>9}{'CPU s':>9}{'MB':>7}{'ratio':>8}{'of CPU':>8}{'limit':>7}")
    measure_sop(scale)
    inaturalist = partial(evaluate, *random_items(*INATURALIST, scale), **ALL)
    show("all ranking metrics, seven levels", measure(inaturalist))


if __name__ == "__main__":
    main()
