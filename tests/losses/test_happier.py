import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from configurations import compose
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import check_against_loop, draw_embeddings, published_cases
from omegaconf import OmegaConf
from torch import Tensor

from dml.losses.happier import ClusterLoss, GradedLists, SmoothHierarchicalAPLoss, graded_average_precision
from dml.ops.relevance import level_counts, power_relevance, shared_levels, weighted_ap_relevance

SURE_BOUND = 0.5 + 1 / (1 + math.exp(-5.0))  # start + sigmoid(delta / tau)


def trees(max_size: int, min_size: int = 2) -> st.SearchStrategy[Tensor]:
    """Labels (B, 1 to 4) of a binary tree of classes, with singletons."""
    return st.builds(
        lambda leaves, depth: torch.tensor([[leaf >> level for level in range(depth)] for leaf in leaves]),
        st.lists(st.integers(0, 9), min_size=min_size, max_size=max_size),
        st.integers(1, 4),
    )


def eq_4(levels: list[int], depth: int, alpha: float) -> list[float]:
    return [(level / depth) ** alpha / levels.count(level) if level else 0.0 for level in levels]


def g(t: Tensor, level_j: int, level_k: int, loss: SmoothHierarchicalAPLoss) -> Tensor:
    near, tied = torch.sigmoid(t / loss.tau), abs(t.item()) < 1e-14
    if level_j >= level_k:
        return torch.tensor(float(t.item() > 0 or tied), dtype=t.dtype)
    if t.item() <= 0 or tied:
        return near
    return loss.start + near if t.item() <= loss.delta else loss.rho * (t - loss.delta) + loss.offset


def h(t: Tensor, level_j: int, level_k: int, loss: SmoothHierarchicalAPLoss) -> Tensor:
    tied = abs(t.item()) < 1e-14
    if level_j <= level_k or not loss.smooth_h_rank:
        return torch.tensor(float(t.item() > 0 or tied), dtype=t.dtype)
    if t.item() <= 0 or tied:
        return loss.leak * t
    return (loss.beta * t + loss.gamma).clamp(max=1.0)


def by_hand(embeddings: Tensor, labels: Tensor, loss: SmoothHierarchicalAPLoss) -> Tensor:
    """facts: a query, an item k and an item j at a time."""
    unit = F.normalize(embeddings, dim=1)
    size, depth = labels.shape
    total = torch.zeros((), dtype=embeddings.dtype)
    for q in range(size):
        shares = [int((labels[q] == labels[j]).sum()) for j in range(size)]
        if not any(share for j, share in enumerate(shares) if j != q):
            continue
        items = [j for j in range(size) if j != q or loss.include_query]
        levels = [shares[j] for j in items]
        cosines = [(unit[q] * unit[j]).sum() for j in items]
        rel = eq_4(levels, depth, loss.alpha)
        precision = torch.zeros((), dtype=embeddings.dtype)
        for k in range(len(items)):
            if levels[k] == 0:
                continue
            rank, h_rank = torch.ones((), dtype=embeddings.dtype), torch.tensor(rel[k], dtype=embeddings.dtype)
            for j in range(len(items)):
                if j != k:
                    rank = rank + g(cosines[j] - cosines[k], levels[j], levels[k], loss)
                    h_rank = h_rank + min(rel[j], rel[k]) * h(cosines[j] - cosines[k], levels[j], levels[k], loss)
            precision = precision + h_rank / rank
        total = total + 1 - precision / sum(rel)
    return total / size


def one_minus_h_ap(
    embeddings: Tensor, labels: Tensor, relevance: Callable[[Tensor], Tensor], include_query: bool
) -> float:
    """Mean of 1 - H-AP, from each query's sorted list; 0 for a query without positives."""
    unit, depth = F.normalize(embeddings, dim=1), labels.shape[1]
    total = 0.0
    for q in range(len(unit)):
        nearest = [j for j in (unit @ unit[q]).argsort(descending=True).tolist() if j != q or include_query]
        levels = shared_levels(labels[[q]], labels[nearest])
        if not any(level for j, level in zip(nearest, levels[0].tolist(), strict=True) if j != q):
            continue
        table = relevance(level_counts(levels, depth).double())
        rel = [float(table[0, level]) for level in levels[0]]
        terms = [sum(min(rel[k], rel[j]) for j in range(k + 1)) / (k + 1) for k in range(len(rel))]
        total += 1 - sum(terms) / sum(rel)
    return total / len(unit)


@pytest.mark.parametrize(("batch", "expected"), published_cases("losses", "smooth_h_ap"))
def test_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings, labels = torch.tensor(batch["embeddings"], dtype=torch.float64), torch.tensor(batch["labels"])
    loss = SmoothHierarchicalAPLoss(**expected["params"])
    assert loss(embeddings, labels).item() == pytest.approx(expected["value"], abs=1e-9)
    assert loss(embeddings.float(), labels).item() == pytest.approx(expected["value"], rel=1e-4)


@given(
    labels=trees(max_size=9),
    seed=st.integers(0, 10_000),
    constants=st.sampled_from(
        [{}, {"start": 0.0, "offset": 1.0}, {"tau": 0.2, "rho": 7.0, "delta": 0.4, "offset": 1.3}]
    ),
    alpha=st.sampled_from([0.5, 1.0, 5.0]),
    smooth_h_rank=st.booleans(),
    include_query=st.booleans(),
    copies=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
)
@examples(80)
def test_equals_a_loop_over_pairs(
    labels: Tensor,
    seed: int,
    constants: dict[str, float],
    alpha: float,
    smooth_h_rank: bool,
    include_query: bool,
    copies: list[tuple[int, int]],
) -> None:
    loss = SmoothHierarchicalAPLoss(alpha=alpha, smooth_h_rank=smooth_h_rank, include_query=include_query, **constants)
    embeddings = draw_embeddings(len(labels), 3, seed)
    for source, copy in copies:
        embeddings[copy % len(labels)] = embeddings[source % len(labels)]
    check_against_loop(loss, lambda rows: by_hand(rows, labels, loss), embeddings, labels)


@given(labels=trees(max_size=14), seed=st.integers(0, 10_000), smooth_h_rank=st.booleans(), include_query=st.booleans())
@examples(150)
def test_is_never_below_one_minus_h_ap(labels: Tensor, seed: int, smooth_h_rank: bool, include_query: bool) -> None:
    loss = SmoothHierarchicalAPLoss(offset=SURE_BOUND, smooth_h_rank=smooth_h_rank, include_query=include_query)
    embeddings = draw_embeddings(len(labels), 3, seed)
    bound = one_minus_h_ap(embeddings, labels, power_relevance, include_query)
    assert loss(embeddings, labels).item() >= bound - 1e-9


@given(labels=trees(max_size=14), seed=st.integers(0, 10_000), include_query=st.booleans(), weighted=st.booleans())
@examples(60)
def test_with_plain_steps_is_one_minus_h_ap(labels: Tensor, seed: int, include_query: bool, weighted: bool) -> None:
    relevance = weighted_ap_relevance if weighted else partial(power_relevance, alpha=2.0)
    loss = SmoothHierarchicalAPLoss(
        tau=1e-9, rho=0.0, delta=0.0, offset=1.0, include_query=include_query, relevance=relevance
    )
    embeddings = draw_embeddings(len(labels), 3, seed)
    expected = one_minus_h_ap(embeddings, labels, relevance, include_query)
    assert loss(embeddings, labels).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("block", [1, 50, 10**6])
@pytest.mark.parametrize("h_rank_step", [False, True])
def test_the_block_is_irrelevant(block: int, h_rank_step: bool) -> None:
    labels = torch.tensor([[leaf, leaf // 2, leaf // 4] for leaf in [0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 7, 7, 7]])
    loss = SmoothHierarchicalAPLoss(tau=0.1)
    levels = shared_levels(labels, labels)
    lists = GradedLists(
        levels,
        power_relevance(level_counts(levels, 3).double()),
        loss._rank_step,
        loss._h_rank_step if h_rank_step else None,
    )
    whole, parts = draw_embeddings(14, 14, seed=1).requires_grad_(), draw_embeddings(14, 14, seed=1).requires_grad_()
    expected, value = graded_average_precision(whole, lists), graded_average_precision(parts, lists, block)
    torch.testing.assert_close(value, expected)
    weights = torch.arange(14.0, dtype=torch.float64)
    (expected @ weights).backward()
    (value @ weights).backward()
    torch.testing.assert_close(parts.grad, whole.grad)


def test_flat_labels_are_one_level() -> None:
    embeddings, labels = draw_embeddings(8, 3, seed=3), torch.arange(8) // 2
    loss = SmoothHierarchicalAPLoss()
    assert loss(embeddings, labels) == loss(embeddings, labels[:, None])


@pytest.mark.parametrize(("batch", "expected"), published_cases("losses", "cluster"))
def test_cluster_loss_equals_the_published_vectors(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    embeddings, labels = torch.tensor(batch["embeddings"], dtype=torch.float64), torch.tensor(batch["labels"])
    proxies = torch.tensor(batch["proxies"], dtype=torch.float64)
    loss = ClusterLoss(*proxies.shape, temperature=expected["params"]["sigma"]).double()
    loss.proxies.data.copy_(proxies)
    assert loss(embeddings, labels).item() == pytest.approx(expected["value"], abs=1e-9)
    assert loss.float()(embeddings.float(), labels).item() == pytest.approx(expected["value"], rel=1e-4)


@given(
    classes=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.05, 1.0]),
)
@examples(40)
def test_cluster_loss_equals_a_loop(classes: list[int], seed: int, temperature: float) -> None:
    embeddings = draw_embeddings(len(classes), 3, seed).requires_grad_()
    torch.manual_seed(seed)
    loss = ClusterLoss(5, 3, temperature).double()
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(embeddings, classes, strict=True):
        scores = [row @ proxy / row.norm() / proxy.norm() / temperature for proxy in loss.proxies]
        total = total - (scores[label].exp() / sum(score.exp() for score in scores)).log()
    value = loss(embeddings, torch.tensor([[label, 0] for label in classes]))
    torch.testing.assert_close(value, total / len(classes), atol=1e-9, rtol=1e-9)
    leaves = [embeddings, loss.proxies]
    expected = torch.autograd.grad(total / len(classes), leaves)
    torch.testing.assert_close(torch.autograd.grad(value, leaves), expected, atol=1e-8, rtol=1e-8)


def test_proxies_start_within_their_bound() -> None:
    proxies = ClusterLoss(400, 64).proxies.detach()
    assert proxies.shape == (400, 64)
    assert 0.124 < proxies.abs().max() <= 0.125
    assert proxies.mean().abs() < 0.002


def test_happier_f_differs_from_happier_as_the_paper_says_and_its_release_in_lambda() -> None:
    names = ("happier", "happier_f", "happier_f_release")
    plain, fine, release = (OmegaConf.to_container(compose(command=f"loss/{name}").loss) for name in names)
    assert plain["weights"] == fine["weights"] == {"h_ap": 0.9, "cluster": 0.1}
    plain["terms"]["h_ap"] |= {"alpha": 5.0, "smooth_h_rank": True}
    assert fine == plain
    assert release == plain | {"weights": {"h_ap": 0.5, "cluster": 0.5}}
