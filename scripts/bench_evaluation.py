"""Prints what exact evaluation costs beside the work that it cannot do without.

python scripts/bench_evaluation.py                # half an hour on two cores
python scripts/bench_evaluation.py --scale 0.1    # a minute

Random embeddings of 512 dimensions in the sizes of SOP's test half (60,502 images of 11,316 classes in 12
super-classes) and of iNaturalist-full's (136,093 images, seven levels). Memory is what a call adds to the process.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from threadpoolctl import threadpool_info

from dml.evaluation import evaluate
from dml.metrics.clustering import nmi
from dml.retrieval.clustering import kmeans

SIZE = 512
SOP = (60_502, (11_316, 12))
INATURALIST = (136_093, (2_452, 1_600, 500, 150, 40, 15, 6))
RECALL_AT = (1, 10, 100, 1000)
RANKING = ("recall", "ap", "map@r", "r_precision", "h_ap", "ndcg", "asi")
BLOCK, ROWS = 1024, 16
ITERATIONS = 20


class Cost(NamedTuple):
    """Seconds on the clock, seconds of all processors, and megabytes added at most."""

    seconds: float
    processors: float
    megabytes: float


def memory(name: str) -> float:
    """Megabytes of the process: "VmRSS" now, "VmHWM" at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def cost(work: Callable[..., Any], *arguments: Any, **settings: Any) -> Cost:
    """What one call takes."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, started, used = memory("VmRSS"), perf_counter(), process_time()
    work(*arguments, **settings)
    return Cost(perf_counter() - started, process_time() - used, memory("VmHWM") - before)


def items(number: int, classes: tuple[int, ...], scale: float = 1.0) -> tuple[Any, Any]:
    """Embeddings (N, 512) of unit length, labels (N, L) of a tree, in random order."""
    rng = np.random.default_rng(0)
    number, finest = round(number * scale), max(2, round(classes[0] * scale))
    levels, of_level = [rng.permutation(np.arange(number) % finest)], finest
    for coarser in classes[1:]:
        levels.append(levels[-1] * min(coarser, of_level) // of_level)
        of_level = min(coarser, of_level)
    labels = np.stack(levels, axis=1)
    embeddings = rng.standard_normal((number, SIZE), dtype=np.float32)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), labels


def product_and_sort(embeddings: Any) -> None:
    """All similarities, and their values sorted in place by a thread a processor."""
    similarities = np.empty((BLOCK, len(embeddings)), dtype=np.float32)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for start in range(0, len(embeddings), BLOCK):
            block = embeddings[start : start + BLOCK]
            np.matmul(block, embeddings.T, out=similarities[: len(block)])
            parts = [similarities[first : first + ROWS] for first in range(0, len(block), ROWS)]
            list(threads.map(np.ndarray.sort, parts))


def flat_search(embeddings: Any, k: int) -> None:
    """FAISS with nothing around it."""
    index: Any = faiss.IndexFlatIP(SIZE)
    index.add(embeddings)
    for start in range(0, len(embeddings), 16_384):
        index.search(embeddings[start : start + 16_384], k)


def bare_kmeans(embeddings: Any, clusters: int) -> None:
    """FAISS's k-means with nothing around it, on all points, and the assignment to its last means."""
    points = {"min_points_per_centroid": 1, "max_points_per_centroid": len(embeddings)}
    machine: Any = faiss.Kmeans(SIZE, clusters, niter=ITERATIONS, seed=0, **points)
    machine.train(embeddings)
    machine.assign(embeddings)


def nmi_of_clusters(embeddings: Any, labels: Any) -> None:
    """NMI of as many clusters as classes."""
    nmi(kmeans(embeddings, len(np.unique(labels)), iterations=ITERATIONS), labels)


def recall_alone(embeddings: Any, labels: Any, recall_at: Sequence[int]) -> None:
    """Recall and no other metric."""
    evaluate(embeddings, labels, metrics=["recall"], recall_at=recall_at)


def show(name: str, own: Cost, bare: Cost | None = None, limit: float | None = None) -> Cost:
    """Prints a line."""
    line = f"{name:<42}{own.seconds:>9.1f}{own.processors:>9.1f}{own.megabytes:>7.0f}"
    if bare is not None:
        line += f"{own.seconds / bare.seconds:>8.2f}{own.processors / bare.processors:>8.2f}"
    print(line + (f"{limit:>7.1f}" if limit else ""), flush=True)
    return own


def beside(name: str, bare: Callable[[], Any], limit: float, works: dict[str, Callable[[], Any]]) -> None:
    """Prints what works cost beside a bare one, which is done before and after them: the machine's speed changes."""
    before, own, after = cost(bare), {of: cost(work) for of, work in works.items()}, cost(bare)
    mean = Cost(*(sum(pair) / 2 for pair in zip(before, after, strict=True)))
    show(name, mean)
    for of, found in own.items():
        show(of, found, mean, limit)


def of_sop(scale: float) -> None:
    """Every part at one size, then the rankings' growth."""
    embeddings, labels = items(*SOP, scale)
    all_metrics: dict[str, Any] = {"metrics": RANKING, "recall_at": RECALL_AT, "clustering": False}
    beside(
        "product and sort",
        lambda: product_and_sort(embeddings),
        2.0,
        {
            "all ranking metrics, two levels": lambda: evaluate(embeddings, labels, **all_metrics),
            "the same, finest level alone": lambda: evaluate(embeddings, labels[:, 0], **all_metrics),
        },
    )
    for recall_at in ((1, 2, 4, 8), RECALL_AT):
        k = max(recall_at)
        beside(
            f"FAISS search, k = {k + 1}",
            partial(flat_search, embeddings, k + 1),
            1.2,
            {f"recall@K alone, K up to {k}": partial(recall_alone, embeddings, labels, recall_at)},
        )
    clusters = len(np.unique(labels[:, 0]))
    beside(
        f"FAISS k-means, {clusters} clusters",
        lambda: bare_kmeans(embeddings, clusters),
        1.1,
        {"NMI": lambda: nmi_of_clusters(embeddings, labels[:, 0])},
    )
    smaller = None
    for part in (4, 2, 1):
        smaller = show(
            f"all ranking metrics, N / {part}", cost(evaluate, *items(*SOP, scale / part), **all_metrics), smaller
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="share of the images and classes")
    scale = parser.parse_args().scale
    kernels = sorted({f"{part['prefix']} {part.get('architecture', '')}".strip() for part in threadpool_info()})
    print(f"{torch.get_num_threads()} threads; {', '.join(kernels)}")
    print(f"{'':<42}{'seconds':>9}{'CPU s':>9}{'MB':>7}{'ratio':>8}{'of CPU':>8}{'limit':>7}")
    of_sop(scale)
    inaturalist = items(*INATURALIST, scale)
    settings = {"metrics": RANKING, "recall_at": RECALL_AT, "clustering": False}
    show("all ranking metrics, seven levels", cost(evaluate, *inaturalist, **settings))


if __name__ == "__main__":
    main()
