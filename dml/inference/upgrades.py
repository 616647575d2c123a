"""The upgrade of an index to a new model: what it changes, an adapter between the models, and new vectors in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.inference.embedding_files import WHOLE, EmbeddingParts, as_arrays, embed_parts
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_index import Index, make_vector_index
from dml.losses.compatibility import class_means
from dml.metrics.binary import map_at_r, positive_ranks, recall_at_k
from dml.report.statistics import ClassSums, mean_difference, sum_by_class
from dml.retrieval.adapters import FITS, HELD_OUT, Adapter
from dml.retrieval.rows import unit_rows
from dml.runtime.errors import InputError
from dml.runtime.text import markdown_table

FEWEST_PAIRS, NEIGHBORS = 10, 10
"""The smallest sample; the number of the new model's own neighbors to find, where no labels tell what is relevant."""
OLD, NEW, PLAIN = "old queries, old vectors", "new queries, new vectors", "new queries, old vectors, no adapter"

Values = dict[str, NDArray[np.float64]]
Cells = dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class UpgradeReport:
    """What a new model finds in an index, through adapters and after all is embedded again.

    Args:
        rows: {row: {metric: (mean, low, high)}}, fractions of the held-out queries with 95 % intervals over classes.
            None if the new model was trained or validated on nearly all classes.
        adapter: the adapter to search with; None if embedding all images again is better, or was asked for.
        verdict: whether waiting, adapting or embedding again pays.
        notes: sentences on the sample and the costs.
    """

    rows: Mapping[str, Cells]
    adapter: Adapter | None = field(repr=False)
    verdict: str
    notes: Sequence[str]

    def __str__(self) -> str:
        """Return the table in Markdown, the notes and the verdict."""
        head = ["", *(f"{metric}, %" for metric in self.rows.get(OLD, ()))]
        form = "{:.1%} ({:.1%} to {:.1%})"
        cells = [
            [name, *(form.format(*cell).replace("%", "") for cell in row.values())] for name, row in self.rows.items()
        ]
        table = [markdown_table(head, cells, right=range(1, len(head)))] if self.rows else []
        return "\n".join([*table, *self.notes, self.verdict])


def measure_upgrade(
    index: Index,
    new_model: ImageEmbedder,
    adapter: str = "auto",
    *,
    vectors: NDArray[Any] | None = None,
    pairs: int = 4000,
    seed: int = 0,
    **options: Any,
) -> UpgradeReport:
    """Embed some images of an index by a new model, fit adapters to the index's vectors, and compare what they find.

    Images of classes that the new model was trained or validated on fit adapters, and tell nothing. A fifth of the
    others are queries, which no compared adapter has seen; all others but the query are searched. By labels the
    metrics are recall@1 and MAP@R; without, the share of the new model's own ten neighbors that is found. The last one
    decides. The adapter of the result is fitted on all pairs. Rows of so many percent replaced are searches of the old
    vectors and of mapped new ones together, which a real upgrade doesn't do.

    The arguments are those of `dml.Index.upgrade`, whose index stays as it is; ``pairs``, the largest number of images
    to embed: more than 4,000 gained nothing at 384 dimensions (rebasis); and the ``seed`` of the sample, of the queries
    and of the adapters. Images that can't be read, or whose vector is NaN, are left out.

    Raises:
        InputError: if the adapter is unknown, there are too few images, or the index is of the new model, or is being
            upgraded already.
    """
    _check(index, new_model, adapter)
    order = np.random.default_rng(seed).permutation(len(index))
    is_seen = np.fromiter(index.items.are_seen(new_model.settings.seen_classes), np.bool_)
    rows = np.sort(order[np.argsort(is_seen[order], kind="stable")][:pairs])
    began = perf_counter()
    if vectors is None:
        embedded = new_model.embed(index.items.paths[rows].tolist(), **{**options, "on_corrupt": "skip"})
    elif np.shape(vectors) != (shape := (len(index), new_model.dimension)):
        raise InputError(f"vectors of shape {np.shape(vectors)}: expected {shape}, one for each image of the index")
    else:
        embedded = np.asarray(vectors, np.float32)[rows]
    duration = timedelta(seconds=round((perf_counter() - began) / len(rows) * len(index)))
    rows, embedded = rows[is_read := ~np.isnan(embedded[:, 0])], embedded[is_read]
    if len(rows) < FEWEST_PAIRS:
        raise InputError(f"index: {len(rows)} of its images can be read; an upgrade compares {FEWEST_PAIRS} or more")
    items = index.items.take(np.isin(np.arange(len(index)), rows))
    all_old, all_new = unit_rows(index.vectors.reconstruct(items.ids), "old vectors"), unit_rows(embedded, "new")
    seen, judged = np.flatnonzero(is_seen[rows]), np.flatnonzero(~is_seen[rows])
    notes = [f"embedding all {len(index):,} images again takes about {duration}"] if vectors is None else []
    if is_seen.any():
        notes.append(f"left out: {is_seen.sum():,} images of classes that the new model was trained or validated on")

    def fit(kind: str) -> Adapter:
        return replace(FITS[kind](all_new, all_old), source=new_model.fingerprint, target=index.space)

    if len(judged) < FEWEST_PAIRS:
        kind = "affine" if adapter == "auto" else adapter
        verdict = f"what pays can't be told by the {len(judged)} images of other classes; {kind} is taken"
        return UpgradeReport({}, None if kind == "none" else fit(kind), verdict, notes)
    old, new = all_old[judged], all_new[judged]
    sample = _Sample(new, items.labels[judged], seed)
    fitted = np.concatenate([judged[sample.fitted], seen])
    values = {OLD: sample.search(old, old)} | ({PLAIN: sample.search(new, old)} if old.shape == new.shape else {})
    kinds = {"auto": [*FITS], "none": []}.get(adapter, [adapter])
    mapped = {kind: torch.from_numpy(FITS[kind](all_new[fitted], all_old[fitted])(new)) for kind in kinds}
    adapted = {kind: sample.search(queries, old) for kind, queries in mapped.items()}
    values |= {f"new queries, old vectors, {kind}": row for kind, row in adapted.items()}
    values[NEW] = sample.search(new, new)
    count = f"{len(sample.queries):,} queries among {len(judged):,} images"
    notes.insert(0, f"{count}; 95 % intervals over {sample.groups_name}")
    if not kinds:
        return UpgradeReport(sample.summarize(values), None, sample.judge(values[OLD], None, values[NEW])[0], notes)
    best = max(kinds, key=lambda kind: [*adapted[kind].values()][-1].mean())
    order = order_by_distance(old, items.labels[judged])
    for percent in range(0, 101, 10):
        gallery, replaced = old.clone(), order[: percent * len(judged) // 100]
        gallery[replaced] = mapped[best][replaced]
        values[f"{percent} % replaced through {best}"] = sample.search(mapped[best], gallery)
    verdict, pays = sample.judge(values[OLD], adapted[best], values[NEW])
    final = fit(best)
    began = perf_counter()
    for query in embedded[:100, None]:
        final(query)
    notes.append(f"{best} takes {1000 * (perf_counter() - began) / min(100, len(rows)):.3f} ms a query")
    return UpgradeReport(sample.summarize(values), final if pays or adapter != "auto" else None, verdict, notes)


def _check(index: Index, new_model: ImageEmbedder, adapter: str) -> None:
    if adapter not in ("auto", *FITS, "none"):
        raise InputError(f"adapter={adapter}: auto, {', '.join(FITS)} or none")
    if index.adapter:
        raise InputError(f"index: it is being upgraded to {index.model.fingerprint}; dml upgrade INDEX finishes that")
    if index.model.fingerprint == new_model.fingerprint:
        raise InputError(f"new model: the index is of {new_model.fingerprint} already; give another one")


class _Sample:
    """Queries among images with labels (N,), "" for none, of which the new model's unit vectors are (N, E)."""

    def __init__(self, new: Tensor, labels: NDArray[Any], seed: int) -> None:
        order = np.random.default_rng((seed, 1)).permutation(len(labels))
        self.queries, self.fitted = np.split(order, [round(HELD_OUT * len(labels))])
        _, classes, sizes = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
        has_positive = ((labels != "") & (sizes[classes] > 1))[self.queries]
        self.has_labels = bool(has_positive.any())
        self.queries = self.queries[has_positive] if self.has_labels else self.queries
        self.groups = classes[self.queries] if self.has_labels else np.arange(len(self.queries))
        self.groups_name = f"{len(np.unique(self.groups)):,} {'classes' if self.has_labels else 'queries'}"
        self.relevant = torch.from_numpy(classes[self.queries, None] == classes)
        if not self.has_labels:
            nearest = self._rank(new, new)[:, :NEIGHBORS]
            self.relevant = torch.zeros_like(self.relevant).scatter_(1, nearest, value=True)

    def _rank(self, vectors: Tensor, gallery: Tensor) -> Tensor:
        """Return the other images, nearest first, of each query. -> (Q, N - 1)"""
        scores = vectors[self.queries] @ gallery.T
        scores[torch.arange(len(scores)), self.queries] = -torch.inf
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :-1]

    def search(self, vectors: Tensor, gallery: Tensor) -> Values:
        """Compute the metrics of the queries among all vectors of the sample, both (N, D). -> {metric: (Q,)}"""
        relevant = self.relevant.gather(1, self._rank(vectors, gallery))
        if not self.has_labels:
            share = relevant[:, :NEIGHBORS].sum(dim=1) / relevant.sum(dim=1)
            return {f"recall@{NEIGHBORS} of the new model's neighbors": share.double().numpy()}
        ranks = positive_ranks(relevant)
        return {"recall@1": recall_at_k(ranks, 1).numpy(), "MAP@R": map_at_r(ranks).numpy()}

    def summarize(self, values_by_row: Mapping[str, Values]) -> dict[str, Cells]:
        """Compute the mean of each metric and its interval, for each row."""
        rows: dict[str, Cells] = {}
        for row, values in values_by_row.items():
            counts, sums = sum_by_class(self.groups, values)
            classes = ClassSums(counts, {name: [column] for name, column in sums.items()})
            rows[row] = {name: (classes.mean(name), *classes.interval(name)) for name in values}
        return rows

    def judge(self, old: Values, adapted: Values | None, new: Values) -> tuple[str, bool]:
        """Judge whether waiting, adapting or embedding again pays, and whether an adapter beats the old model.

        An adapter does if retention x gain > 1: the share that it keeps of what the new model finds, times how much
        more that is than what the old one finds.
        """
        metric, before = [*old.items()][-1]
        after, between = [*new.values()][-1], [*(adapted or new).values()][-1]
        change = mean_difference(before, after, self.groups)
        gain, retention = (max(a.mean(), 1e-12) / max(b.mean(), 1e-12) for a, b in ((after, before), (between, after)))
        pays = bool(adapted) and retention * gain > 1
        points = f"{100 * change.mean:+.1f} points of {metric} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
        product = f"; an adapter: retention {retention:.3f} x gain {gain:.3f} = {retention * gain:.3f}"
        choice = "waiting" if not change.low > 0 else "adapting" if pays else "embedding again"
        return f"{choice} pays: the new model changes {points}{product if adapted else ''}", pays


def order_by_distance(vectors: Any, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Order images by the distance of their unit vectors (N, D) from the mean of their class, the farthest first.

    So the most misplaced are replaced first (arXiv 2509.16664). Images without a label come last, in their order.
    """
    units, codes = torch.as_tensor(vectors), torch.from_numpy(np.unique(labels.astype(str), return_inverse=True)[1])
    similarities = (units * class_means(units, codes)[codes]).sum(dim=1)
    return np.argsort(np.where(labels == "", np.inf, similarities), kind="stable")


def replace_in_parts(index: Index, new_model: ImageEmbedder, folder: Path, **options: Any) -> None:
    """Embed all images of an index by a new model, part by part in the index's folder, then replace the vectors.

    If it is killed, the same call goes on with the parts that are there. Until the end the index stays as it is, and so
    does every answer; the caller, who holds the folder, writes it then. The options are those of
    `ImageEmbedder.embed_in_batches`.
    """
    make_vector_index(new_model, index.vectors.factory, index.vectors.parameters, len(index))  # it may refuse the size
    paths = index.items.paths
    order = order_by_distance(index.vectors.reconstruct(index.items.ids), index.items.labels)
    facts = {"fingerprint": new_model.fingerprint}
    size = options.get("batch_size") or new_model.settings.batch_size
    output, labels = folder / index.name_replaced(new_model), index.items.labels[order].tolist()
    parts = EmbeddingParts(output, paths[order].tolist(), labels, facts, size)
    with parts.hold(WHOLE):
        if missing := parts.missing(WHOLE):
            embed_parts(new_model, parts, missing, options)
        rows = {path: row for row, path in enumerate(paths.tolist())}
        vectors = np.full((len(index), new_model.dimension), np.nan, np.float32)
        for table in parts.read_all(may_lack_images=options.get("on_corrupt") == "skip"):
            arrays = as_arrays(table)
            vectors[[rows[path] for path in arrays["paths"].tolist()]] = arrays["vectors"]
        index.replace_vectors(new_model, vectors)
