"""Vectors in smaller forms: their metrics, their bytes and their speed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.evaluation.evaluator import Evaluator, Metrics, add_means
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.items import BenchmarkList, Items, Positives, find_nearest_items
from dml.evaluation.names import ASYMMETRIC
from dml.evaluation.ranking import LARGEST_BLOCK, PerQuery
from dml.evaluation.raw_features import PrincipalComponents
from dml.metrics.binary import map_at_r, positive_ranks, recall_at_k
from dml.ops.pairs import related
from dml.retrieval.compressed_vectors import HAS_RABITQ, CompressedVectors, Storage
from dml.retrieval.rows import unit_rows
from dml.runtime.console import warn
from dml.runtime.errors import InputError
from dml.runtime.text import markdown_table

SMALLEST_PREFIX = 8
"""The number of dimensions of each head in the smallest prefix that is chosen without being named."""


class VectorForm(NamedTuple):
    """Vectors that take the place of a model's, of unit length or 0.

    These are float32 (M, D) of the training images, (N, D) of the tested images, and (N, D) of these as queries.
    """

    name: str
    train: Tensor
    test: Tensor
    queries: Tensor


def choose_prefixes(prefixes: Sequence[int] | None, head_dims: Mapping[str, int]) -> list[int]:
    """Return the sizes of the prefixes, the whole embedding last.

    >>> choose_prefixes(None, {"L": 64, "H": 64})
    [8, 16, 32, 64]

    Args:
        prefixes: number of dimensions of each head; None takes the largest head and its halves, down to
            `SMALLEST_PREFIX`.
        head_dims: size of the embedding of each head.

    Raises:
        InputError: if a prefix is larger than every head.
    """
    largest = max(head_dims.values())
    if prefixes is None:
        halves = [largest]
        while halves[-1] // 2 >= SMALLEST_PREFIX:
            halves.append(halves[-1] // 2)
        return halves[::-1]
    if max(prefixes) > largest:
        raise InputError(f"--prefixes {max(prefixes)}: the embedding of a head has {largest} dimensions at most")
    return sorted({*prefixes, largest})


def take_prefix(vectors: Tensor, head_dims: Mapping[str, int], size: int, concatenation: str = "normalized") -> Tensor:
    """Take the first dimensions of each head, and join them as the model joins its heads. (N, D) -> (N, D')

    So a prefix is what a model with smaller heads would give. Heads of no more dimensions than ``size`` keep all of
    them. If all heads do, the vectors are returned as they are.

    >>> take_prefix(torch.tensor([[0.3, 0.4, 0.6, 0.8]]), {"L": 2, "H": 2}, size=1)
    tensor([[0.7071, 0.7071]])

    ``concatenation`` is how the model joins its heads, see `dml.models.embedding.EmbeddingModel`.
    """
    if size >= max(head_dims.values()):
        return vectors
    parts = [part[:, :size] for part in torch.split(vectors, [*head_dims.values()], dim=1)]
    if concatenation == "normalized":
        parts = [unit_rows(part, "embeddings") for part in parts]
    return unit_rows(torch.cat(parts, dim=1), "embeddings")


def make_forms(
    train: Tensor,
    test: Tensor,
    head_dims: Mapping[str, int],
    prefixes: Sequence[int],
    concatenation: str = "normalized",
) -> Iterator[VectorForm]:
    """Yield the prefixes, and then projections onto as many principal components of M >= 2 training images."""
    sizes = []
    for prefix in prefixes:
        train_part, part = (take_prefix(rows, head_dims, prefix, concatenation) for rows in (train, test))
        sizes.append(part.shape[1])
        yield VectorForm(f"prefix{prefix}", train_part, part, part)
    fitted = [PrincipalComponents.fit(train, size) for size in sizes]
    by_size = {len(components.deviations): components for components in fitted if len(components.deviations)}
    for whiten in (False, True):
        for size, components in by_size.items():
            projected = (unit_rows(components.project(rows, whiten=whiten), "components") for rows in (train, test))
            train_part, part = projected
            yield VectorForm(f"pca{size}{'_whitened' if whiten else ''}", train_part, part, part)


Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

METRICS = ("recall@1", "map@r")
"""The metrics that are measured, at each level."""

TIMED_QUERIES, TIMED_NEIGHBORS, TIMED_SECONDS = 1000, 10, 0.2
"""The speed is that of searches for the ten nearest vectors of at most 1,000 queries, again and again for 0.2 s."""


@dataclass(frozen=True)
class CompressionRow:
    """The cost of one form of the vectors.

    Args:
        vectors: name of the vectors, see `VectorForm`.
        storage: how they are stored, such as "int8" or "pq+rescore".
        numbers: number D of dimensions of a vector.
        bytes: bytes of a vector that every search reads.
        rescored_bytes: further bytes of a vector, which a search reads for its candidates alone.
        queries_per_second: queries that a search answers in a second.
        metrics: {name: value} of `METRICS` at each level.
    """

    vectors: str
    storage: str
    numbers: int
    bytes: int
    rescored_bytes: int
    queries_per_second: float
    metrics: Metrics


def measure_compression(
    train: Tensor,
    test: UnitEmbeddings,
    head_dims: Mapping[str, int],
    evaluator: Evaluator,
    prefixes: Sequence[int],
    candidates: int,
    concatenation: str = "normalized",
    gallery: Sequence[Tensor] = (),
) -> Iterator[CompressionRow]:
    """Measure every form of the vectors; each is trained on the training images alone.

    The rows of float32 are those of the evaluator. ``candidates`` neighbors are sorted again by float32 vectors in the
    rows with "+rescore". ``gallery`` has another model's vectors of the training and the tested images, which the
    queries search in the rows of "asymmetric".

    Raises:
        InputError: if there are fewer than two training images, or queries have no positives.
    """
    if len(train) < 2:
        raise InputError(f"{len(train)} training images: quantizers are trained on at least 2")
    if not HAS_RABITQ:
        warn("rabitq: this version of FAISS has no such codes, so their rows are left out")
    config = replace(evaluator.config, metrics=("recall", "map@r"), recall_at=(1,), clustering=False)
    evaluator = replace(evaluator, config=config)
    asymmetric = [VectorForm(ASYMMETRIC, gallery[0], gallery[1], test.rows)] if gallery else []
    for form in chain(make_forms(train, test.rows, head_dims, prefixes, concatenation), asymmetric):
        exact_metrics = evaluator.evaluate(UnitEmbeddings(form.queries), gallery=UnitEmbeddings(form.test)).metrics
        yield _make_row(form, Storage.FLOAT32, _Searches(form, Storage.FLOAT32, evaluator), 0, exact_metrics)
        if form.name.startswith("pca"):
            continue
        for storage in [*Storage][1 : None if HAS_RABITQ else -4]:
            searches = _Searches(form, storage, evaluator)
            for rescored in (0,) if storage in (Storage.FLOAT16, Storage.INT8) else (0, candidates):
                yield _make_row(form, storage, searches, rescored, searches.evaluate(rescored))


class _Searches:
    """The searches of an evaluation, one in each of the benchmark lists."""

    def __init__(self, form: VectorForm, storage: Storage, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.items = Items(form.queries, evaluator.table.label_sets)
        self.searched = self.items._replace(embeddings=form.test)
        self.lists = [part.name_gallery() for part in evaluator.benchmark_lists]
        self.galleries = [
            CompressedVectors(storage, form.train.numpy(), form.test.numpy()[part.searched]) for part in self.lists
        ]

    def evaluate(self, candidates: int) -> Metrics:
        """Compute the metrics; the first ``candidates`` neighbors are sorted again by their float32 vectors."""
        metrics = {
            part.metric_name(name): value
            for part, gallery in zip(self.lists, self.galleries, strict=True)
            for name, value in self._evaluate_list(part, gallery, candidates).items()
        }
        return add_means(metrics, self.lists)

    def _evaluate_list(self, part: BenchmarkList, gallery: CompressedVectors, candidates: int) -> Metrics:
        queries = self.items.take(part.queries, part.level)
        searched = self.searched.take(part.searched, part.level)
        excluded = part.excluded
        if self.evaluator.config.exclude_nearest:
            excluded = find_nearest_items(queries, searched, range(len(part.queries)), LARGEST_BLOCK)
        positives = Positives(queries.labels, searched.labels, excluded)
        counts = [positives.count(level) for level in range(positives.depth)]
        num_left = len(gallery) - positives.excluded.shape[1]
        k = min(max(1, candidates, *(int(count.max(initial=0)) for count in counts)), num_left)
        vectors = queries.embeddings.numpy()
        neighbors = gallery.search(vectors, k, positives.excluded)
        if candidates:
            neighbors = gallery.rescore(vectors, neighbors, candidates)
        values: dict[str, npt.NDArray[np.float64]] = {}
        for level, count in enumerate(counts):
            ranks = rank_positives(neighbors, queries.labels[:, level], searched.labels[:, level], count)
            values[f"level{level}/recall@1"] = np.where(count, recall_at_k(ranks, 1).numpy(), np.nan)
            values[f"level{level}/map@r"] = np.where(count, map_at_r(ranks).numpy(), np.nan)
        no_similarities = np.empty((0, 0), np.float32)
        has_positive = positives.find_queries_with_any()
        return PerQuery(part.queries, values, neighbors, no_similarities, has_positive).compute_means()

    def measure_speed(self, candidates: int) -> float:
        """Return how many queries of the first benchmark list are answered in a second."""
        gallery, part = self.galleries[0], self.lists[0]
        queries = self.items.embeddings.numpy()[part.queries[:TIMED_QUERIES]]
        k = min(max(TIMED_NEIGHBORS, candidates), len(gallery))

        def search() -> None:
            neighbors = gallery.search_quickly(queries, k)
            if candidates:
                gallery.rescore(queries, neighbors, candidates)

        return len(queries) * count_per_second(search)


def rank_positives(neighbors: Integers, query_labels: Integers, gallery_labels: Integers, counts: Integers) -> Tensor:
    """Return the ranks of each query's positives (Q, P) float64, rising and padded with infinity.

    A positive that isn't among the neighbors gets a rank behind all items, which metrics of the first ranks count as
    not found.

    >>> neighbors, gallery = np.array([[2, 0]]), np.array([7, 7, 5])
    >>> rank_positives(neighbors, np.array([7]), gallery, counts=np.array([2])).tolist()
    [[2.0, 4.0]]

    ``neighbors`` (Q, K) are the nearest items, ``counts`` (Q,) the positives of each query, K or fewer.
    """
    near_ranks = positive_ranks(torch.from_numpy(related(query_labels, gallery_labels[neighbors])))
    ranks = torch.full((len(neighbors), int(counts.max(initial=0))), torch.inf, dtype=torch.float64)
    ranks[:, : near_ranks.shape[1]] = near_ranks
    is_positive = torch.arange(ranks.shape[1]) < torch.from_numpy(counts)[:, None]
    return torch.where(is_positive, ranks.clamp(max=len(gallery_labels) + 1.0), torch.inf)


def _make_row(
    form: VectorForm, storage: Storage, searches: _Searches, candidates: int, metrics: Metrics
) -> CompressionRow:
    numbers = form.test.shape[1]
    return CompressionRow(
        form.name,
        f"{storage}+rescore" if candidates else str(storage),
        numbers,
        searches.galleries[0].bytes_per_vector,
        4 * numbers if candidates else 0,
        searches.measure_speed(candidates),
        {name: value for name, value in metrics.items() if name.rpartition("/")[2] in METRICS},
    )


def count_per_second(task: Callable[[], Any]) -> float:
    """Return how often a task runs in a second; the first time isn't counted."""
    task()
    count, began = 0, perf_counter()
    while (seconds := perf_counter() - began) < TIMED_SECONDS:
        task()
        count += 1
    return count / seconds


HEADER = ("vectors", "dimensions", "stored as", "bytes", "recall@1", "MAP@R", "queries/s")
"""The columns of the table; the metrics are in percent."""

FIELDS = {"numbers": int, "bytes": int, "rescored_bytes": int, "queries_per_second": float}


def make_values(rows: Iterable[CompressionRow]) -> dict[str, Any]:
    """Return values such as {"prefix8/int8/level0/recall@1": 0.93, "prefix8/int8/bytes": 24}, for compression.json."""
    return {
        f"{row.vectors}/{row.storage}/{name}": value
        for row in rows
        for name, value in {**{field: getattr(row, field) for field in FIELDS}, **row.metrics}.items()
    }


def read_values(values: Mapping[str, Any]) -> list[CompressionRow]:
    """Return the rows of `make_values`, in their order; names without a row, such as "split", are left out."""
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for key, value in values.items():
        vectors, storage, name = (*key.split("/", 2), "", "")[:3]
        if name:
            grouped.setdefault((vectors, storage), {})[name] = value
    return [
        CompressionRow(
            vectors,
            storage,
            metrics={name: value for name, value in row.items() if name not in FIELDS},
            **{field: kind(row[field]) for field, kind in FIELDS.items()},
        )
        for (vectors, storage), row in grouped.items()
    ]


def format_cells(rows: Sequence[CompressionRow]) -> list[list[str]]:
    """Return the cells of each row below `HEADER`; of several levels, the metrics are those of the finest."""
    return [
        [
            row.vectors,
            str(row.numbers),
            row.storage,
            f"{row.bytes} + {row.rescored_bytes}" if row.rescored_bytes else str(row.bytes),
            *(f"{100 * row.metrics[f'level0/{metric}']:.1f}" for metric in METRICS),
            f"{row.queries_per_second:,.0f}",
        ]
        for row in rows
    ]


def format_rows(rows: Sequence[CompressionRow]) -> str:
    """Format the table in Markdown."""
    return markdown_table(HEADER, format_cells(rows), right=(1, 3, 4, 5, 6))
