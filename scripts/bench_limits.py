"""Print what each part of dml takes for 10,000 and 100,000 images: time, memory, and how fast both grow.

python scripts/bench_limits.py                            # two minutes on two cores
python scripts/bench_limits.py 10000 100000 1000000       # an hour

The images are noise of 24 x 24 pixels in zip files, in classes of ten; half of the classes are tested. Embeddings are
synthetic, with 128 dimensions, around the centers of the classes. Each part runs in a new process. MiB are what it adds
to the memory of this process at most, without that of the processes that it starts. Behind each time stands the
exponent: n times as many images as in the column before took n to this power as long; 1 is in proportion.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import io
import json
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from process_memory import AddedMemory

from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.cache_build import build_cache
from dml.data.prepared.verification import CheckedImage, check_images, write_table
from dml.data.readers.csv import read
from dml.data.table import ImageTable, load
from dml.data.transforms import Resize
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.metric import MetricConfig
from dml.evaluation.per_query import join_lists, read_queries, write_queries
from dml.report.embedding_map import embedding_map
from dml.report.page import run_report
from dml.report.run import ReportedRun
from dml.retrieval.search import nearest_neighbors
from dml.runtime.text import markdown_table
from dml.samplers.class_balanced import ClassBalancedSampler

CLASS, SIDE, DIMENSION, ARCHIVE = 10, 24, 128, 10_000
"""Images of a class, pixels of a side, numbers of an embedding, and images of an archive."""
NEIGHBORS, PROCESSES, LIST = 8, 2, "list.csv"
CONFIG = "seed: 0\ndataset: {name: synthetic}\nmodel: {heads: [H]}\nloss: {_target_: none}\n"
PIXELS = Resize("warp", 16)


class Part(NamedTuple):
    """A part that is measured.

    Args:
        name: words in the table.
        prepare: function of the folder of the data set that returns what isn't measured.
        work: function of that, which is measured.
    """

    name: str
    prepare: Callable[[Path], object]
    work: Callable[..., object]


def write_images(root: Path, count: int) -> None:
    """Write zip files of images whose contents differ, and a list of them."""
    rng, lines = np.random.default_rng(0), ["path,label"]
    for first in range(0, count, ARCHIVE):
        name = f"{first // ARCHIVE:04d}.zip"
        with zipfile.ZipFile(root / name, "w") as archive:
            for image in range(first, min(first + ARCHIVE, count)):
                file = io.BytesIO()
                Image.fromarray(rng.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)).save(file, "JPEG")
                archive.writestr(f"{image:08d}.jpg", file.getvalue())
                lines.append(f"{name}/{image:08d}.jpg,{image // CLASS}")
    (root / LIST).write_text("\n".join(lines))


def read_table(root: Path) -> ImageTable:
    """Read the data set, with the checks of its splits."""
    return load(partial(read, val_fraction=0.2), str(root / LIST), name="synthetic")


def cache_folder(root: Path) -> CacheFolder:
    """Return the folder of the prepared files."""
    folder = CacheFolder.from_setting("auto", str(root / LIST), "synthetic")
    assert folder is not None
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def draw_embeddings(labels: NDArray[np.int64]) -> torch.Tensor:
    """Draw embeddings (N, 128) around the centers of their classes."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((labels.max() + 1, DIMENSION), dtype=np.float32)
    return torch.from_numpy(centers[labels] + rng.standard_normal((len(labels), DIMENSION), dtype=np.float32))


def verify(root: Path) -> dict[str, CheckedImage]:
    """Decode every image once, unless that was done before, and write what was found."""
    table, folder = read_table(root), cache_folder(root)
    images = check_images(table, folder, processes=PROCESSES, advance=lambda _: None)
    write_table(folder, table, images)
    return images


def prepare_cache(root: Path) -> tuple[CacheFolder, dict[str, CheckedImage]]:
    """Return the folder of the prepared files, and the images."""
    return cache_folder(root), verify(root)


def decode(prepared: tuple[CacheFolder, dict[str, CheckedImage]]) -> None:
    """Keep every image decoded."""
    folder, images = prepared
    build_cache(folder, PIXELS, images, processes=PROCESSES, advance=lambda _: None)


def draw_batches(table: ImageTable) -> None:
    """Draw the first batches of an epoch."""
    sampler = ClassBalancedSampler(table.subset("train").labels, classes_per_batch=20, images_per_class=3, seed=0)
    list(islice(sampler, 10))


def prepare_neighbors(root: Path) -> torch.Tensor:
    """Return embeddings of the training images."""
    return draw_embeddings(read_table(root).subset("train").labels[:, 0])


Tested = tuple[ImageTable, UnitEmbeddings]


def prepare_test(root: Path) -> Tested:
    """Return the tested images and their embeddings."""
    table = read_table(root).select_evaluated("test").renumber()
    return table, UnitEmbeddings.normalize(draw_embeddings(table.labels[:, 0]))


def evaluate(tested: Tested, *metrics: str) -> None:
    """Compute some metrics of a test."""
    table, embeddings = tested
    Evaluator(table, MetricConfig(metrics=metrics)).evaluate(embeddings)


def prepare_report(root: Path) -> tuple[Path, Tested]:
    """Return a folder for the files of a run, and what was tested."""
    return root, prepare_test(root)


def report(prepared: tuple[Path, Tested]) -> None:
    """Write the file of all queries and the report, after the search for the neighbors that they show."""
    folder, (table, embeddings) = prepared
    evaluation = Evaluator(table, MetricConfig(metrics=["recall"])).evaluate(embeddings, neighbors=NEIGHBORS)
    described = {"levels": table.levels, "names": table.names, "made_with": {}}
    queries = join_lists(table, evaluation.lists, NEIGHBORS, **described, positions=embedding_map(embeddings))
    write_queries(folder / "per_query.parquet", queries)
    run = ReportedRun(
        "run", {**evaluation.metrics, "split": "test", "step": 0}, read_queries(folder / "per_query.parquet"), CONFIG
    )
    (folder / "report.html").write_text(run_report(run), encoding="utf-8")


PARTS = (
    Part("read the list, check the splits", Path, read_table),
    Part("decode every image once (`dml prepare`)", Path, verify),
    Part("keep the images decoded (`--resize`)", prepare_cache, decode),
    Part("first ten batches of an epoch", read_table, draw_batches),
    Part("16 nearest neighbors of each training image", prepare_neighbors, lambda rows: nearest_neighbors(rows, 16)),
    Part("test: recall@K", prepare_test, lambda tested: evaluate(tested, "recall")),
    Part("test: recall@K and MAP@R", prepare_test, lambda tested: evaluate(tested, "recall", "map@r")),
    Part("neighbors, map, per_query.parquet, report", prepare_report, report),
)


def measure(part: Part, root: Path) -> None:
    """Measure a part, and print its seconds and MiB as JSON."""
    prepared = part.prepare(root)
    with AddedMemory() as added:
        started = perf_counter()
        part.work(prepared)
        seconds = perf_counter() - started
    print(json.dumps([seconds, added.peak]))


def main() -> None:
    """Print the table of the numbers of images; with a part and a folder as arguments, measure that part there."""
    if len(sys.argv) == 3 and Path(sys.argv[2]).is_dir():
        measure(PARTS[int(sys.argv[1])], Path(sys.argv[2]))
        return
    counts = [int(argument) for argument in sys.argv[1:]] or [10_000, 100_000]
    rows: list[list[str]] = [[part.name] for part in PARTS]
    before: list[float] = []
    for column, count in enumerate(counts):
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder), count)
            measured = []
            for number in range(len(PARTS)):
                command = [sys.executable, __file__, str(number), folder]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
                measured.append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{count:,}: {PARTS[number].name}: {measured[-1][0]:.1f} s", file=sys.stderr, flush=True)
            sizes = [(Path(folder) / name).stat().st_size / 2**20 for name in ("per_query.parquet", "report.html")]
            print(f"{count:,}: per_query.parquet {sizes[0]:.1f}, report.html {sizes[1]:.1f} MiB", file=sys.stderr)
        for row, (seconds, megabytes), earlier in zip(rows, measured, before or [0.0] * len(PARTS), strict=True):
            exponent = f"{math.log(seconds / earlier) / math.log(count / counts[column - 1]):.2f}" if earlier else ""
            row += [f"{seconds:.1f} s{exponent and f' ({exponent})'}", f"{megabytes:,.0f}"]
        before = [seconds for seconds, _ in measured]
    header = ["", *(cell for count in counts for cell in (f"{count:,} images", "MiB"))]
    print(markdown_table(header, rows, right=range(1, len(header))))


if __name__ == "__main__":
    main()
