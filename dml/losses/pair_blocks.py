"""Pair and triplet losses of pytorch-metric-learning a block of anchors at a time, without its lists of pairs.

Each anchor has a row of distances; a sum over its triplets comes from its sorted negatives, or from its numbers of
positives and negatives. Values and gradients are the library's, up to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pytorch_metric_learning.utils.loss_and_miner_utils import logsumexp  # type: ignore[import-untyped]
from torch import Tensor

from dml.ops.gradients import in_blocks
from dml.ops.pairs import list_columns, own_entries, related
from dml.ops.poincare import euclidean_distances


class Batch(NamedTuple):
    """Anchors (B, D) with classes (B,), and what they are compared with: themselves and a gallery, (R, D) and (R,).

    The classes may be sets of labels (B, W) and (R, W), see `related`.
    """

    anchors: Tensor
    classes: Tensor
    references: Tensor
    reference_classes: Tensor


def find_form(loss: Any, miner: Any) -> Callable[[Any, Any, Batch], Any] | None:
    """Return the function of loss, miner and batch that computes a loss, or None if only the library computes it."""
    form = FORMS.get(type(loss).__name__)
    allowed = ("DivisorReducer",) if form is _margin else ("AvgNonZeroReducer", "MeanReducer")
    reducers = getattr(loss.reducer, "reducers", {"loss": loss.reducer}).values()
    distances = [part.distance for part in (loss, miner) if part is not None]
    is_covered = (
        type(loss).__module__.startswith("pytorch_metric_learning.")
        and all(type(reducer).__name__ in allowed for reducer in reducers)
        and type(loss.distance).__name__ in ("CosineSimilarity", "DotProductSimilarity", "LpDistance", "SNRDistance")
        and len({(type(one), one.normalize_embeddings, one.p, one.power, one.is_inverted) for one in distances}) == 1
        and (miner is None or (type(loss).__name__, type(miner).__name__) in MINED)
        and not loss.embedding_regularizer
        and getattr(loss, "triplets_per_anchor", "all") == "all"
    )
    return form if is_covered else None


def _by_rows(loss: Any, batch: Batch, compute: Callable[..., tuple[Tensor, ...]], width: int | None = 1) -> Any:
    """Compute results (B, ...) of all anchors by a function of blocks of them.

    It gets distances (b, R), masks (b, R) of positive and negative pairs, and the slice of the anchors, and makes
    ``width`` numbers of each pair; None stands for the size of the largest class.
    """
    width = width or int(related(batch.reference_classes, batch.reference_classes).sum(dim=1).max())
    distance, is_snr = loss.distance, type(loss.distance).__name__ == "SNRDistance"
    anchors = references = distance.maybe_normalize(batch.anchors)
    if batch.references is not batch.anchors:
        references = distance.maybe_normalize(batch.references)
    if is_snr:  # the variance of a difference of rows with mean 0 is their squared distance
        anchors, references = (part - part.mean(dim=1, keepdim=True) for part in (anchors, references))

    def compute_block(block: slice) -> tuple[Tensor, ...]:
        rows, same = anchors[block], related(batch.classes[block], batch.reference_classes)
        own_entries(positives := same.clone(), block).fill_(False)
        matrix = euclidean_distances(rows, references).square() if is_snr else distance.compute_mat(rows, references)
        matrix = matrix / rows.square().sum(dim=1, keepdim=True) if is_snr else matrix
        return compute(matrix if distance.power == 1 else matrix**distance.power, positives, ~same, block)

    return in_blocks(compute_block, range(len(anchors)), width * len(references), anchors.device)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    return total.sum() / count.sum().clamp(min=1)


def _add_up(terms: Tensor, mask: Tensor, reducer: Any = None) -> tuple[Tensor, Tensor]:
    """Add up each row's terms in a mask that a reducer averages, and count them. (b, ...) -> (b,), (b,)"""
    mask = mask & (terms > 0) if type(reducer).__name__ == "AvgNonZeroReducer" else mask
    dims = tuple(range(1, terms.ndim))
    return torch.where(mask, terms, 0.0).sum(dim=dims), mask.sum(dim=dims)


def _reduce(loss: Any, batch: Batch, terms: Tensor) -> Any:
    entry = {"losses": terms, "indices": torch.arange(len(terms)), "reduction_type": "element"}
    return loss.reducer({"loss": entry}, batch.anchors, batch.classes)


def _elements(loss: Any, miner: Any, batch: Batch) -> Any:
    """Compute a loss of which the library computes a term for each row of the matrix."""

    def compute(matrix: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        if miner is not None:
            apart = (-matrix if loss.distance.is_inverted else matrix).detach()
            # beside a gallery, the miner takes an anchor for a positive of itself
            known = positives if batch.references is batch.anchors else ~negatives
            farthest = apart.masked_fill(~known, -torch.inf).amax(dim=1, keepdim=True)
            nearest = apart.masked_fill(~negatives, torch.inf).amin(dim=1, keepdim=True)
            positives = positives & (apart + miner.epsilon > nearest)
            negatives = negatives & (apart - miner.epsilon < farthest)
        losses = loss._compute_loss(matrix, positives.to(matrix), negatives.to(matrix))["loss"]["losses"]
        terms = losses.flatten() if isinstance(losses, Tensor) else 0.0 * matrix.sum(dim=1)  # 0 without a pair
        return terms, positives.sum(dim=1), negatives.sum(dim=1)

    terms, *counts = _by_rows(loss, batch, compute)
    # the library takes a single positive and a single negative pair for none
    return _reduce(loss, batch, terms) * (torch.stack(counts).sum(dim=1) > 1).any()


def _average_pairs(loss: Any, batch: Batch, terms: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Any:
    """Add up the mean of what positive pairs give and of what negative pairs give."""
    near, far = (loss.reducer.reducers[name] for name in ("pos_loss", "neg_loss"))

    def compute(matrix: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        pulled, pushed = terms(matrix)
        return *_add_up(pulled, positives, near), *_add_up(pushed, negatives, far)

    sums = _by_rows(loss, batch, compute)
    return _mean(*sums[:2]) + _mean(*sums[2:])


def _contrastive(loss: Any, _: None, batch: Batch) -> Any:
    pull, push = partial(loss.pos_calc, margin=loss.pos_margin), partial(loss.neg_calc, margin=loss.neg_margin)
    return _average_pairs(loss, batch, lambda matrix: (pull(matrix), push(matrix)))


def _intra_pair_variance(loss: Any, _: None, batch: Batch) -> Any:
    sums = _by_rows(loss, batch, lambda matrix, *masks: (*_add_up(matrix, masks[0]), *_add_up(matrix, masks[1])))
    near, far, rises = _mean(*sums[:2]), _mean(*sums[2:]), loss.distance.is_inverted

    def terms(matrix: Tensor) -> tuple[Tensor, Tensor]:
        pulled = loss.variance_with_eps(matrix, near, loss.pos_eps, rises)
        return F.relu(pulled) ** 2, F.relu(loss.variance_with_eps(matrix, far, loss.neg_eps, not rises)) ** 2

    return _average_pairs(loss, batch, terms)


def _threshold_consistent(loss: Any, _: None, batch: Batch) -> Any:
    def compute(cosines: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        pulled, pushed = loss.margin_plus - cosines, cosines - loss.margin_minus
        return *_add_up(pulled, positives & (pulled >= 0)), *_add_up(pushed, negatives & (pushed >= 0))

    sums = _by_rows(loss, batch, compute)
    return loss.lambda_plus * _mean(*sums[:2]) + loss.lambda_minus * _mean(*sums[2:])


def _margin(loss: Any, _: None, batch: Batch) -> Any:
    """Compute the margin loss of all triplets, each of which counts a positive and a negative pair of its anchor."""
    is_shared = len(loss.beta) == 1
    rows = batch.classes.new_zeros(len(batch.classes)) if is_shared else batch.classes
    betas = loss.beta.to(batch.anchors)[rows, None]

    def compute(matrix: Tensor, positives: Tensor, negatives: Tensor, block: slice) -> tuple[Tensor, ...]:
        pulled = loss.distance.margin(matrix, betas[block]) + loss.margin
        pushed = loss.distance.margin(betas[block], matrix) + loss.margin
        return *_add_up(pulled, positives & (pulled > 0)), *_add_up(pushed, negatives & (pushed > 0))

    same = related(batch.classes, batch.reference_classes).sum(dim=1)
    positives, negatives = same - 1, len(batch.references) - same
    pulled, num_pulled, pushed, num_pushed = _by_rows(loss, batch, compute)
    total, count = negatives * pulled + positives * pushed, (negatives * num_pulled + positives * num_pushed).sum()
    penalty, triplets = loss.nu * betas[:, 0] * loss.learn_beta, positives * negatives
    if is_shared:
        return _mean(total, count) + penalty[0] * triplets.any()
    return _mean(total + penalty * triplets * (count > 0), count)


def _lifted(loss: Any, _: None, batch: Batch) -> Any:
    lowest = torch.finfo(batch.anchors.dtype).min

    def push(matrix: Tensor, _: Tensor, negatives: Tensor, __: slice) -> tuple[Tensor, ...]:
        gaps = loss.distance.margin(loss.neg_margin, matrix).masked_fill(~negatives, lowest)
        return gaps.logsumexp(dim=1), negatives.any(dim=1)

    pushed, has_negatives = _by_rows(loss, batch, push)
    # an item of the gallery is no anchor, so it has no negatives of its own
    others = F.pad(pushed, (0, len(batch.references) - len(pushed)), value=lowest)

    def pull(matrix: Tensor, positives: Tensor, _: Tensor, block: slice) -> tuple[Tensor, ...]:
        joined = torch.logaddexp(pushed[block, None], others) + loss.distance.margin(matrix, loss.pos_margin)
        return _add_up(F.relu(joined) ** 2 / 2, positives, loss.reducer)

    return _mean(*_by_rows(loss, batch, pull)) * has_negatives.any()


def _triplets(loss: Any, miner: Any, batch: Batch) -> Any:
    """Compute the triplet loss from sorted negatives, or with swap or softplus from all triplets of some anchors."""
    sign, largest = -1 if loss.distance.is_inverted else 1, torch.finfo(batch.anchors.dtype).max
    every = sign * loss.distance(batch.anchors) if loss.swap else None  # (B, B)
    kind, margin = ("all", largest) if miner is None else (miner.type_of_triplets, miner.margin)
    # a triplet is taken if its gap d_an - d_ap is above the lowest and at most the highest
    lowest = {"semihard": 0.0, "easy": margin}.get(kind, -largest)
    highest = {"hard": min(margin, 0.0), "easy": largest}.get(kind, margin)

    def add_sorted(matrix: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        columns, is_positive = list_columns(positives)
        near = (distances := sign * matrix).gather(1, columns)  # (b, K)
        ascending = distances.masked_fill(~negatives, torch.inf).sort(dim=1).values
        find = partial(torch.searchsorted, ascending.detach())
        first, last = (find(near.detach() + gap, right=True) for gap in (lowest, highest))
        end = torch.minimum(last, find((near + loss.margin).detach()))  # triplets beyond it add 0
        # Two prefix sums nearly cancel, so they are sums of small numbers, in float64 where there is that type.
        center = distances.detach().mean(dim=1, keepdim=True)
        small = (ascending - center).nan_to_num(posinf=0.0)
        sums = F.pad(small.to(torch.float32 if matrix.device.type == "mps" else torch.float64).cumsum(dim=1), (1, 0))
        terms = (end - first) * (near + loss.margin - center).to(sums) - sums.gather(1, end) + sums.gather(1, first)
        stop = end if type(loss.reducer).__name__ == "AvgNonZeroReducer" else last
        count = ((stop - first).clamp(min=0) * is_positive).sum(dim=1)
        return _add_up(terms, is_positive & (end > first))[0].to(matrix), count

    def add_each(matrix: Tensor, positives: Tensor, negatives: Tensor, block: slice) -> tuple[Tensor, ...]:
        columns, is_positive = list_columns(positives)
        distances = sign * matrix if every is None else every[block]
        near, far = distances.gather(1, columns)[:, :, None], distances[:, None, :]
        is_mined = (far - near > lowest) & (far - near <= highest)
        far = far if every is None else torch.minimum(far, every[columns])
        terms = (F.softplus if loss.smooth_loss else F.relu)(near - far + loss.margin)
        triplets = is_positive[:, :, None] & negatives[:, None, :] & is_mined
        return _add_up(terms, triplets, loss.reducer)

    if loss.swap or loss.smooth_loss:
        return _mean(*_by_rows(loss, batch, add_each, width=None))
    return _mean(*_by_rows(loss, batch, add_sorted, width=2))


def _pnp(loss: Any, _: None, batch: Batch) -> Any:
    """Compute PNP from the number of negatives before each item of the query's class, the query itself included."""
    penalties: dict[str, Callable[[Tensor], Tensor]] = {
        "Ds": torch.log1p,
        "Dq": lambda count: 1 - 1 / (1 + count) ** loss.alpha,
        "Iu": lambda count: (1 + count) * torch.log1p(count),
        "Ib": lambda count: (loss.b * count - torch.log1p(loss.b * count)) / loss.b**2,
        "O": lambda count: count,
    }

    def compute(matrix: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        items, is_item = list_columns(~negatives)
        gaps = matrix[:, None, :] - matrix.gather(1, items)[:, :, None]
        before = (loss.sigmoid(gaps, temp=loss.anneal) * negatives[:, None, :]).sum(dim=2)
        total, count = _add_up(penalties[loss.variant](before), is_item)
        has_positives = positives.any(dim=1)
        return total / count * has_positives, has_positives

    return _mean(*_by_rows(loss, batch, compute, width=None))


def _fast_ap(loss: Any, _: None, batch: Batch) -> Any:
    largest = 2**loss.distance.power
    edges = torch.linspace(0.0, largest, loss.num_edges, dtype=batch.anchors.dtype).to(batch.anchors.device)[:, None]

    def compute(matrix: Tensor, positives: Tensor, negatives: Tensor, _: slice) -> tuple[Tensor, ...]:
        pulses = F.relu(1 - (matrix[:, None, :] - edges).abs() / (largest / loss.num_bins))
        near, far = ((pulses * pairs[:, None, :]).sum(dim=2) for pairs in (positives, negatives))
        totals, count = (near + far).cumsum(dim=1), positives.sum(dim=1)
        precisions = near * near.cumsum(dim=1) / totals.masked_fill(totals == 0, 1.0)
        return 1 - precisions.sum(dim=1) / count.clamp(min=1), count > 0

    terms, has_positives = _by_rows(loss, batch, compute, loss.num_edges)
    return _reduce(loss, batch, terms[has_positives])


def _angular(loss: Any, _: None, batch: Batch) -> Any:
    negatives = ~related(batch.classes, batch.reference_classes)
    if not negatives.any():
        return 0.0 * batch.anchors.sum()
    pairs, slope = (~negatives).fill_diagonal_(False).nonzero().T, torch.tan(loss.alpha) ** 2

    def compute(block: slice) -> tuple[Tensor, ...]:
        rows, columns = pairs[:, block]
        near, far = loss.distance.normalize(batch.anchors[rows]), loss.distance.normalize(batch.references[columns])
        products = ((near + far) @ batch.references[:, :, None]).squeeze(2).T
        gaps = 4 * slope * products - 2 * (1 + slope) * (near * far).sum(dim=1, keepdim=True)
        return (logsumexp(gaps, keep_mask=negatives[rows], add_one=True).flatten(),)

    (terms,) = in_blocks(compute, range(pairs.shape[1]), len(batch.references), batch.anchors.device)
    return _reduce(loss, batch, terms)


FORMS: dict[str, Callable[[Any, Any, Batch], Any]] = {
    **dict.fromkeys(("CircleLoss", "GeneralizedLiftedStructureLoss", "MultiSimilarityLoss", "SupConLoss"), _elements),
    **dict.fromkeys(("ContrastiveLoss", "SignalToNoiseRatioContrastiveLoss"), _contrastive),
    "AngularLoss": _angular,
    "FastAPLoss": _fast_ap,
    "IntraPairVarianceLoss": _intra_pair_variance,
    "LiftedStructureLoss": _lifted,
    "MarginLoss": _margin,
    "PNPLoss": _pnp,
    "ThresholdConsistentMarginLoss": _threshold_consistent,
    "TripletMarginLoss": _triplets,
}
MINED = (("MultiSimilarityLoss", "MultiSimilarityMiner"), ("TripletMarginLoss", "TripletMarginMiner"))
