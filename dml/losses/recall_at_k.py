import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.losses.loss_contract import Loss
from dml.ops.gradients import block_size, refuse_second_derivative
from dml.ops.pairs import ALL, finest
from dml.runtime.errors import InputError, check_number, check_whole

BLOCK = 2**21
"""Number of gaps that a CPU computes at a time, 8 MiB in float32; in smaller blocks threads wait for each other."""


class RecallAtKLoss(Loss):
    r"""Recall@k surrogate RS@k, with similarity mixup SiMix as an option (Patel et al., 2022), Eq. 4-9.

    Each of the N items in turn is the query q. P are the other items of its class, and s_i is the cosine of the query
    and item i::

        rank(p) = 1 + sum_{j != p} sigmoid((s_j - s_p) / temperature)
        recall@k = min(k, sum_{p in P} sigmoid((k - rank(p)) / recall_temperature)) / min(k, |P|)
        L = mean over queries and over k of 1 - recall@k

    The embeddings are L2-normalized here. With SiMix, each pair of a class adds one virtual item, see
    `similarity_mixup`. All items, real and virtual, are queries and are ranked.

    As in the release, the query counts as one of the j in the ranks of its own positives, a k above N is N, and a
    virtual item isn't normalized again.

    Departures: classes may have different numbers of images. A query without positives adds 0; the paper has none.

    The gradient is computed together with the value, in blocks of queries. Besides the embeddings, memory holds the
    similarities of one block only; a second derivative isn't supported.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> round(RecallAtKLoss(recall_at=(1, 2), temperature=0.1)(embeddings, torch.tensor([0, 1, 0, 1])).item(), 3)
    0.844

    Args:
        temperature: divisor of the differences of cosines in the sigmoid of a rank.
        recall_temperature: divisor of k - rank(p) in the sigmoid of recall@k.
        count_query: whether the query counts as one of the items j in the ranks of its own positives.
        mixup: whether to add the virtual items of SiMix. Their weights are uniform between 0 and 1. They are a function
            of the number of batches so far, which is a part of the state of the loss, so every process draws the same.
    """

    needs_positives: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = True

    def __init__(
        self,
        recall_at: Sequence[int] | int = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        recall_temperature: float = 1.0,
        count_query: bool = True,
        mixup: bool = False,
    ) -> None:
        super().__init__()
        ranks: list[Any] = [*recall_at] if isinstance(recall_at, Iterable) else [recall_at]
        for k in ranks or [None]:
            check_whole("loss.recall_at", k, least=1)
        check_number("loss.temperature", temperature, above=0)
        check_number("loss.recall_temperature", recall_temperature, above=0)
        self.recall_at = tuple(int(k) for k in ranks)
        self.temperature = temperature
        self.recall_temperature = recall_temperature
        self.count_query = count_query
        self.mixup = mixup
        if mixup:
            self.num_batches: Tensor
            self.register_buffer("num_batches", torch.zeros((), dtype=torch.long))

    def forward(self, embeddings: Tensor, labels: Tensor, queries: slice = ALL) -> Tensor:
        """Compute the mean loss of the rows ``queries`` of embeddings (B, D), and of that share of virtual items."""
        items, classes = F.normalize(embeddings, dim=1), finest(labels)
        if self.mixup:
            items, classes = similarity_mixup(items, classes, self._draw_weights(items, classes))
        chosen = _choose_queries(queries, len(embeddings), len(items)).to(items.device)
        value: Tensor = _RecallSurrogate.apply(items, classes, chosen, self)
        start, stop, _ = queries.indices(len(embeddings))
        return value * (len(embeddings) / (stop - start))

    def _draw_weights(self, items: Tensor, classes: Tensor) -> Tensor:
        """Draw the weights of the pairs (P,) on the CPU, without a change of torch's own random numbers."""
        generator = torch.Generator().manual_seed(int(self.num_batches))
        self.num_batches += 1
        return torch.rand(len(_list_pairs(classes)), generator=generator).to(items)


def similarity_mixup(unit_embeddings: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Add one virtual item for each pair of a class, with its label: SiMix (Patel et al., 2022), Section 3.4.

    The pairs p are those i < j with the same label, in ascending order of i, then of j. The virtual item is
    weights[p] x_i + (1 - weights[p]) x_j; it isn't normalized. So its inner product with an item is the same mixture
    of the two cosines. (B, D), (B,), (P,) -> (B + P, D), (B + P,)

    >>> similarity_mixup(torch.eye(2), torch.tensor([3, 3]), torch.tensor([0.25]))
    (tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.2500, 0.7500]]), tensor([3, 3, 3]))
    """
    first, second = _list_pairs(labels).T
    if weights.shape != first.shape:
        raise InputError(f"weights of shape {tuple(weights.shape)}: the labels have {len(first)} pairs of one class")
    shares = weights[:, None]
    virtual = shares * unit_embeddings[first] + (1 - shares) * unit_embeddings[second]
    return torch.cat([unit_embeddings, virtual]), torch.cat([labels, labels[first]])


def _list_pairs(labels: Tensor) -> Tensor:
    """List the pairs i < j with the same label, in order of i, then j. (B,) -> (P, 2)"""
    return (labels[:, None] == labels).triu(diagonal=1).nonzero()


def _choose_queries(queries: slice, num_real: int, num_items: int) -> Tensor:
    """List the real items in ``queries``, and the same share of the virtual ones, each in one of consecutive slices."""
    start, stop, _ = queries.indices(num_real)
    num_virtual = num_items - num_real
    first, last = (num_real + num_virtual * bound // num_real for bound in (start, stop))
    return torch.cat([torch.arange(start, stop), torch.arange(first, last)])


class _RecallSurrogate(torch.autograd.Function):
    """Computes the sum of the terms of queries (Q,) among N items, over N, and the gradient in the same pass."""

    @staticmethod
    def forward(ctx: Any, items: Tensor, labels: Tensor, chosen: Tensor, settings: RecallAtKLoss) -> Tensor:
        total, gradient = items.new_zeros(()), torch.zeros_like(items)
        for queries, positives, is_positive in _query_blocks(labels, chosen):
            similarities = items[queries] @ items.T
            losses, slopes = _block_losses(similarities, queries, positives, is_positive, settings)
            total += losses.sum()
            if ctx.needs_input_grad[0]:
                gradient.addmm_(slopes.T, items[queries])
                gradient.index_add_(0, queries, slopes @ items)
        ctx.save_for_backward(gradient.div_(len(items)))
        return total / len(items)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None]:
        refuse_second_derivative("RecallAtKLoss")
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None, None, None


def _query_blocks(labels: Tensor, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield blocks (b,) of queries with a positive, fewest first, their positives (b, P), and which aren't padding."""
    num_items, block = len(labels), block_size(labels.device, on_cpu=BLOCK)
    parts = torch.split(chosen, max(1, block // num_items))
    counts, order = torch.cat([(labels[part, None] == labels).sum(dim=1) - 1 for part in parts]).sort(stable=True)
    sizes = counts.tolist()
    start = next((place for place, size in enumerate(sizes) if size), len(sizes))
    while start < len(sizes):
        end = min(len(sizes), start + max(1, block // (num_items * sizes[start])))
        # All queries of a block are padded to its last one's positives, so that one has to fit into a block as well.
        end = start + max(1, min(end - start, block // (num_items * sizes[end - 1])))
        queries = chosen[order[start:end]]
        in_class = (labels[queries, None] == labels).scatter_(1, queries[:, None], False)
        positives = in_class.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : sizes[end - 1]]
        yield queries, positives, in_class.gather(1, positives)
        start = end


def _block_losses(
    similarities: Tensor, queries: Tensor, positives: Tensor, is_positive: Tensor, settings: RecallAtKLoss
) -> tuple[Tensor, Tensor]:
    """Compute the losses (b,) of a block, and the gradients by its similarities (b, N), which are overwritten."""
    positive_similarities = similarities.gather(1, positives)
    if not settings.count_query:
        similarities.scatter_(1, queries[:, None], -torch.inf)
    before = (similarities[:, None, :] - positive_similarities[:, :, None]).div_(settings.temperature)
    # Smaller sigmoids don't change a rank, and subnormal numbers are a hundred times slower to compute with.
    smallest = 0.75 * math.log(torch.finfo(before.dtype).tiny)
    before = torch.threshold_(before, smallest, -torch.inf).sigmoid_()
    # The sum includes the positive itself, which counts sigmoid(0) = 1/2; with 1/2 that is the 1 of the formula.
    losses, rank_slopes = _recall_losses(0.5 + before.sum(dim=2), is_positive, similarities.shape[1], settings)
    step_slopes = torch.addcmul(before, before, before, value=-1.0).div_(settings.temperature)
    slopes = (rank_slopes[:, None, :] @ step_slopes).squeeze(1)
    slopes.scatter_add_(1, positives, -rank_slopes * step_slopes.sum(dim=2))
    return losses, slopes


def _recall_losses(
    ranks: Tensor, is_positive: Tensor, num_items: int, settings: RecallAtKLoss
) -> tuple[Tensor, Tensor]:
    """Compute the losses (b,) of queries and the gradients (b, P) by the ranks (b, P) of their positives."""
    losses, slopes = torch.zeros_like(ranks[:, 0]), torch.zeros_like(ranks)
    count, scale = is_positive.sum(dim=1), len(settings.recall_at)
    for k in settings.recall_at:
        limit = min(k, num_items)
        within = torch.sigmoid((limit - ranks) / settings.recall_temperature) * is_positive
        hits, most = within.sum(dim=1), count.clamp(max=limit) * scale
        losses += 1 / scale - hits.clamp(max=limit) / most
        slope = within * (1 - within) / settings.recall_temperature
        slopes += slope * (hits < limit)[:, None] / most[:, None]
    return losses, slopes
