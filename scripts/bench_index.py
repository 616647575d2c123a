"""Print what a million vectors take in an index: time to build and search, memory, and recall against exact search.

python scripts/bench_index.py            # a million vectors of 128 dimensions
python scripts/bench_index.py 100000

The vectors are synthetic, of unit length, around the centers of classes of 50. Each kind of index is measured in a new
process. MB are the peak of the process, of which the vectors themselves take 512 in float32; they are handed to the
index in blocks, as `Index.build` does.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dml.retrieval.vector_index import VectorIndex

DIMENSION, CLASS, QUERIES, K = 128, 50, 1000, 10
BLOCK = 65_536
KINDS = {
    "Flat": "",
    "IVF1024,Flat": "nprobe=128",
    "IVF1024,SQ8": "nprobe=128",
}
"""FAISS's descriptions of the measured indexes, with the parameters of their search."""

Rows = NDArray[np.float32]


def draw_blocks(count: int) -> Iterator[Rows]:
    """Draw vectors (n, 128) of unit length, a block at a time; the same ones in each process."""
    centers = np.random.default_rng(0).standard_normal((max(1, count // CLASS), DIMENSION), dtype=np.float32)
    for first in range(0, count, BLOCK):
        rng = np.random.default_rng((1, first))
        classes = rng.integers(len(centers), size=min(BLOCK, count - first))
        rows = centers[classes] + rng.standard_normal((len(classes), DIMENSION), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure(count: int, factory: str) -> None:
    """Build and search one index, and print the figures and the neighbors as JSON."""
    queries = next(draw_blocks(min(count, BLOCK)))[:QUERIES]
    started = perf_counter()
    index = VectorIndex(DIMENSION, factory)
    index.set_parameters(KINDS[factory])
    first = 0
    for rows in draw_blocks(count):
        if index.needs_training:
            index.train(rows)
        index.add(rows, np.arange(first, first + len(rows)))
        first += len(rows)
    built = perf_counter()
    ids = index.search(queries, K)[1]
    together = perf_counter()
    for query in queries[:100]:
        index.search(query[None], K)
    single = perf_counter()
    print(
        json.dumps(
            {
                "build": built - started,
                "queries": len(queries) / (together - built),
                "single": 10 * (single - together),
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "ids": ids.tolist(),
            }
        )
    )


def main() -> None:
    """Measure each kind of index in its own process, and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{count:,} vectors of {DIMENSION} numbers; {QUERIES:,} queries, {K} neighbors")
    print(f"{'index':<16}{'s to build':>12}{'MB at peak':>12}{'queries/s':>12}{'ms alone':>10}{'recall@10, %':>14}")
    exact: list[list[int]] = []
    for factory in KINDS:
        command = [sys.executable, __file__, str(count), factory]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (this script itself)
        measured = json.loads(done.stdout.splitlines()[-1])
        exact = exact or measured["ids"]
        shared = sum(len({*expected} & {*ids}) for expected, ids in zip(exact, measured["ids"], strict=True))
        print(
            f"{factory:<16}{measured['build']:12.1f}{measured['memory']:12.0f}{measured['queries']:12.0f}{measured['single']:10.1f}"
            f"{100 * shared / (K * len(exact)):14.1f}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(int(sys.argv[1]), sys.argv[2])
    else:
        main()
