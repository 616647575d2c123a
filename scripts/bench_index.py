"""Print what kinds of index make of a million vectors: bytes, time to build, memory, speed, recall and its interval.

python scripts/bench_index.py                    # a million vectors of 128 dimensions, 20 minutes on two cores
python scripts/bench_index.py 100000
python scripts/bench_index.py 1000000 HNSW32     # the figures of one kind

The vectors are synthetic, of unit length: random ones around 2,000 random centers, both with axis j scaled by j^-0.5,
so that a few axes tell the most, as in trained embeddings. Each kind is measured in a new process, by 1,000 of the
vectors, which exclude themselves. Its search parameters are the fastest whose interval is above 0.95, as
`index.check(recall=0.95)` chooses them; a kind that doesn't reach it keeps FAISS's own. Bytes are those of the file,
for each vector. MB are the peak of the process while it builds the index, of which the vectors would take 512.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from measuring import read_memory
from numpy.typing import NDArray

from dml.inference.certificates import RecallTest, count_per_second, summarize
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError

DIMENSION, CENTERS, NOISE, QUERIES, K = 128, 2000, 0.5, 1000, 10
BLOCK = 65_536
RECALL = 0.95
KINDS = (
    *("Flat", "SQ8", "SQ4", "RR128,RaBitQ", "RR128,RaBitQ2", "RR128,RaBitQ4", "RR128,RaBitQ8"),
    *("RR128,RaBitQ4,RFlat", "IVF1024,Flat", "IVF1024,SQ8", "RR128,IVF1024,RaBitQ4,RFlat", "HNSW32"),
)
"""FAISS's descriptions of the measured indexes."""


def draw_blocks(count: int) -> Iterator[NDArray[np.float32]]:
    """Draw vectors (n, 128) of unit length, a block at a time; the same ones in each process."""
    scales = np.arange(1, DIMENSION + 1, dtype=np.float32) ** -0.5
    centers = np.random.default_rng(0).standard_normal((CENTERS, DIMENSION), dtype=np.float32)
    for first in range(0, count, BLOCK):
        rng = np.random.default_rng((1, first))
        classes = rng.integers(CENTERS, size=min(BLOCK, count - first))
        noise = rng.standard_normal((len(classes), DIMENSION), dtype=np.float32)
        rows = (centers[classes] + NOISE * noise) * scales
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure(count: int, factory: str) -> None:
    """Build and search one index, and print the figures as JSON."""
    started, added = perf_counter(), 0
    index = VectorIndex(DIMENSION, factory)
    for rows in draw_blocks(count):
        if index.needs_training:
            index.train(rows)
        index.add(rows, np.arange(added, added + len(rows)))
        added += len(rows)
    seconds, peak = perf_counter() - started, read_memory("VmHWM")
    with TemporaryDirectory() as folder:
        index.write(Path(folder, "index"))
        size = Path(folder, "index").stat().st_size
    gallery, ids = np.concatenate([*draw_blocks(count)]), np.arange(count)
    queries = gallery[:QUERIES]
    test = RecallTest(queries, gallery, ids, K, ids[: len(queries), None])
    with suppress(InputError):  # no parameters reach it, and the index keeps FAISS's own
        test.choose_parameters(index, RECALL)
    certificate = summarize(test.measure(index), [""] * len(queries))
    speed = count_per_second(lambda: index.search(queries, K + 1)) * len(queries)
    figures = {"bytes": size / count, "seconds": seconds, "peak": peak, "speed": speed}
    print(json.dumps(figures | {"parameters": index.parameters} | certificate))


def main() -> None:
    """Measure each kind of index in its own process, and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{count:,} vectors of {DIMENSION} numbers; {QUERIES:,} queries, {K} neighbors", flush=True)
    print("| kind | bytes | s to build | MB | parameters | recall@10 | queries/s |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: |")
    for factory in KINDS:
        command = [sys.executable, __file__, str(count), factory]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (this script itself)
        row = json.loads(done.stdout.splitlines()[-1])
        recall = f"{row['recall']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        parameters = f"`{row['parameters']}`" if row["parameters"] else ""
        figures = f"{row['bytes']:.0f} | {row['seconds']:.0f} | {row['peak']:,.0f} | {parameters}"
        print(f"| `{factory}` | {figures} | {recall} | {row['speed']:,.0f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(int(sys.argv[1]), sys.argv[2])
    else:
        main()
