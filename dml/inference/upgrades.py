"""The upgrade of an index to a new model: what it changes, and an adapter between the models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dml.inference.embedder import Embedder
from dml.inference.index_items import IndexItems
from dml.metrics.binary import map_at_r, positive_ranks, recall_at_k
from dml.report.statistics import mean_difference
from dml.retrieval.adapters import FITS, Adapter
from dml.retrieval.rows import unit_rows
from dml.retrieval.vector_index import VectorIndex
from dml.runtime.errors import InputError
from dml.runtime.text import markdown_table

HELD_OUT, FEWEST_PAIRS, NEIGHBORS = 0.2, 10, 10
"""The share of queries; the smallest sample; the new model's own neighbors to find, where no labels tell what is
relevant.
"""
OLD, NEW = "old queries, old vectors", "new queries, new vectors"

Values = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class UpgradeReport:
    """What a new model finds: {row: {metric: (mean, low, high)}}, with 95 % intervals over held-out classes."""

    rows: Mapping[str, Mapping[str, tuple[float, float, float]]]
    adapter: Adapter | None = field(repr=False)  # None if embedding all images again is better, or was asked for
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
    items: IndexItems,
    index: VectorIndex,
    space: str,
    new_model: Embedder,
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
    decides. The adapter of the result is fitted on all pairs. Images that can't be read, or whose vector is NaN, are
    left out.

    The arguments are those of `dml.Index.upgrade`; ``space``, the fingerprint of the model whose vectors the index
    holds; ``pairs``, the largest number of images to embed: more than 4,000 gained nothing at 384 dimensions (rebasis);
    and the ``seed`` of the sample and of the queries.
    """
    if adapter not in ("auto", *FITS, "none"):
        raise InputError(f"adapter={adapter}: auto, {', '.join(FITS)} or none")
    if space == new_model.fingerprint:
        raise InputError(f"new model: the index is of {space} already; give another one")
    order = np.random.default_rng(seed).permutation(len(items))
    is_seen = np.fromiter(items.are_seen(new_model.settings.seen_classes), np.bool_)
    rows = np.sort(order[np.argsort(is_seen[order], kind="stable")][:pairs])
    if vectors is None:
        embedded = new_model.embed(items.paths[rows].tolist(), **{**options, "on_corrupt": "skip"})
    elif np.shape(vectors) != (shape := (len(items), new_model.dimension)):
        raise InputError(f"vectors of shape {np.shape(vectors)}: expected {shape}, one for each image of the index")
    else:
        embedded = np.asarray(vectors, np.float32)[rows]
    rows, embedded = rows[is_read := ~np.isnan(embedded[:, 0])], embedded[is_read]
    if len(rows) < FEWEST_PAIRS:
        raise InputError(f"index: {len(rows)} of its images can be read; an upgrade compares {FEWEST_PAIRS} or more")
    all_old, all_new = unit_rows(index.reconstruct(items.ids[rows]), "old vectors"), unit_rows(embedded, "new")
    seen, judged = np.flatnonzero(is_seen[rows]), np.flatnonzero(~is_seen[rows])
    notes = []
    if is_seen.any():
        notes = [f"left out: {is_seen.sum():,} images of classes that the new model was trained or validated on"]

    def choose(kind: str) -> Adapter | None:
        fitted = None if kind == "none" else FITS[kind](all_new, all_old)
        return fitted and replace(fitted, source=new_model.fingerprint, target=space)

    if len(judged) < FEWEST_PAIRS:
        kind = "affine" if adapter == "auto" else adapter
        verdict = f"what pays can't be told by the {len(judged)} images of other classes; {kind} is taken"
        return UpgradeReport({}, choose(kind), verdict, notes)
    old, new = all_old[judged], all_new[judged]
    sample = _Sample(new, items.labels[rows[judged]], seed)
    fitted = np.concatenate([judged[sample.fitted], seen])
    values, adapted = {OLD: sample.search(old, old)}, dict[str, Values]()
    for kind in {"auto": [*FITS], "none": []}.get(adapter, [adapter]):
        mapped = torch.from_numpy(FITS[kind](all_new[fitted], all_old[fitted])(new))
        adapted[kind] = values[f"new queries, old vectors, {kind}"] = sample.search(mapped, old)
    values[NEW] = sample.search(new, new)
    notes.insert(0, f"{len(sample.queries):,} queries among {len(judged):,} images; {sample.intervals}")
    best = max(adapted, key=lambda kind: [*adapted[kind].values()][-1].mean(), default="none")
    verdict, pays = sample.judge(values[OLD], adapted.get(best), values[NEW])
    summary = {
        row: {name: mean_difference(0 * column, column, sample.groups)[:3] for name, column in columns.items()}
        for row, columns in values.items()
    }
    return UpgradeReport(summary, choose(best if pays or adapter != "auto" else "none"), verdict, notes)


def upgrade_index(
    index: Any, new_model: Embedder, adapter: str, *, vectors: NDArray[Any] | None, dry_run: bool, **options: Any
) -> UpgradeReport:
    """Measure the upgrade of a `dml.Index`, and do it unless it is a dry run; see `dml.Index.upgrade`."""
    if index.adapter:
        raise InputError(f"index: it is being upgraded to {index.model.fingerprint}; dml upgrade INDEX finishes that")
    report = measure_upgrade(index.items, index.vectors, index.space, new_model, adapter, vectors=vectors, **options)
    if report.adapter and not dry_run:
        index.model, index.adapter = new_model, report.adapter
    elif not dry_run:
        embedding = {name: value for name, value in options.items() if name not in ("pairs", "seed")}
        embedded = new_model.embed(index.items.paths.tolist(), **embedding) if vectors is None else vectors
        index.replace_vectors(new_model, np.asarray(embedded, np.float32))
    return report


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
        count = len(np.unique(self.groups))
        self.intervals = f"95 % intervals over {count:,} {'classes' if self.has_labels else 'queries'}"
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

    def judge(self, old: Values, adapted: Values | None, new: Values) -> tuple[str, bool]:
        """Judge whether waiting, adapting or embedding again pays, and whether an adapter beats the old model."""
        metric, before = [*old.items()][-1]
        after, between = [*new.values()][-1], [*(adapted or new).values()][-1]
        change = mean_difference(before, after, self.groups)
        gain, retention = (max(a.mean(), 1e-12) / max(b.mean(), 1e-12) for a, b in ((after, before), (between, after)))
        pays = bool(adapted) and retention * gain > 1
        points = f"{100 * change.mean:+.1f} points of {metric} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
        product = f"; an adapter: retention {retention:.3f} x gain {gain:.3f} = {retention * gain:.3f}"
        choice = "waiting" if not change.low > 0 else "adapting" if pays else "embedding again"
        return f"{choice} pays: the new model changes {points}{product if adapted else ''}", pays
