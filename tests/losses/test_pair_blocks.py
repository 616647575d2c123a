"""Losses in blocks of anchors, against pytorch-metric-learning's own forward with its lists of pairs and triplets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from configurations import compose, settings_of
from conftest import ROOT
from live_bytes import LiveBytes
from loss_batches import draw_embeddings
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance
from pytorch_metric_learning.losses import (
    AngularLoss,
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    GeneralizedLiftedStructureLoss,
    IntraPairVarianceLoss,
    LiftedStructureLoss,
    MarginLoss,
    MultiSimilarityLoss,
    PNPLoss,
    SignalToNoiseRatioContrastiveLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.miners import MultiSimilarityMiner, PairMarginMiner, TripletMarginMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer, MeanReducer, SumReducer
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor

from dml.losses import baselines
from dml.losses.baselines import PairLoss
from dml.losses.pair_blocks import find_form
from dml.ops import gradients
from dml.run.builders import build_losses

SIZE = 6
SQUARED = LpDistance(normalize_embeddings=False, power=2)


def triplet(distance: Any = SQUARED, kind: str | None = None, miner_margin: float = 0.2, **settings: Any) -> PairLoss:
    miner = None
    if kind is not None:
        miner = TripletMarginMiner(margin=miner_margin, type_of_triplets=kind, distance=distance)
    return PairLoss(TripletMarginLoss(distance=distance, **{"margin": 0.3, **settings}), miner, normalize=False)


def plain(loss: Any, miner: Any = None) -> PairLoss:
    return PairLoss(loss, miner, normalize=False)


def multi_similarity(distance: Any = None) -> PairLoss:
    distance = distance or CosineSimilarity()
    return plain(MultiSimilarityLoss(distance=distance), MultiSimilarityMiner(distance=distance))


CASES: dict[str, Callable[[], PairLoss]] = {
    "triplet": triplet,
    "triplet-mean": lambda: triplet(reducer=MeanReducer()),
    "triplet-cosine": lambda: triplet(CosineSimilarity(), "semihard"),
    "triplet-no-margin": lambda: triplet(margin=0.0),
    "triplet-negative-margins": lambda: triplet(kind="all", miner_margin=-0.4, margin=-0.1),
    **{f"triplet-{kind}": lambda kind=kind: triplet(kind=kind) for kind in ("all", "hard", "semihard", "easy")},
    **{
        f"triplet-{kind}-wider-mean": lambda kind=kind: triplet(kind=kind, miner_margin=0.5, reducer=MeanReducer())
        for kind in ("all", "hard", "semihard", "easy")
    },
    **{
        f"triplet-{'-'.join(settings)}-{kind}": lambda kind=kind, settings=settings: triplet(
            CosineSimilarity() if kind == "hard" else SQUARED, kind, **settings
        )
        for kind in (None, "all", "hard", "semihard", "easy")
        for settings in ({"swap": True}, {"smooth_loss": True}, {"swap": True, "smooth_loss": True})
    },
    "lifted": lambda: plain(LiftedStructureLoss()),
    "lifted-nonzero": lambda: plain(LiftedStructureLoss(neg_margin=-2.0, pos_margin=1.0, reducer=AvgNonZeroReducer())),
    "lifted-cosine": lambda: plain(LiftedStructureLoss(0.5, 0.9, distance=CosineSimilarity())),
    "generalized-lifted": lambda: plain(GeneralizedLiftedStructureLoss()),
    **{f"pnp-{name}": lambda name=name: plain(PNPLoss(variant=name, alpha=1.5)) for name in PNPLoss.VARIANTS},
    "snr": lambda: plain(SignalToNoiseRatioContrastiveLoss(pos_margin=0.3)),
    "snr-plain": lambda: plain(SignalToNoiseRatioContrastiveLoss(distance=SNRDistance(normalize_embeddings=False))),
    "tcm": lambda: plain(ThresholdConsistentMarginLoss(lambda_plus=0.7, margin_minus=0.1)),
    "contrastive": lambda: plain(ContrastiveLoss(pos_margin=0.1, neg_margin=1.2)),
    "contrastive-mean": lambda: plain(ContrastiveLoss(1, 0.2, distance=CosineSimilarity(), reducer=MeanReducer())),
    "variance": lambda: plain(IntraPairVarianceLoss(0.02, 0.03)),
    "variance-nonzero": lambda: plain(IntraPairVarianceLoss(distance=LpDistance(), reducer=AvgNonZeroReducer())),
    "margin": lambda: plain(MarginLoss(nu=0.1)),
    "margin-learned": lambda: plain(MarginLoss(nu=0.1, learn_beta=True)),
    "margin-classes": lambda: plain(MarginLoss(nu=0.1, learn_beta=True, num_classes=9)),
    "multi-similarity": multi_similarity,
    "multi-similarity-l2": lambda: multi_similarity(LpDistance()),
    "multi-similarity-all": lambda: plain(MultiSimilarityLoss()),
    "circle": lambda: plain(CircleLoss()),
    "sup-con": lambda: plain(SupConLoss()),
    "sup-con-dot": lambda: plain(SupConLoss(distance=DotProductSimilarity(normalize_embeddings=False))),
    "fast-ap": lambda: plain(FastAPLoss()),
    "angular": lambda: plain(AngularLoss()),
}

UNEVEN = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 5]


def grid(count: int) -> Tensor:
    """Rows of small whole numbers and a few halves, whose distances and cosines are often equal."""
    return (3 * draw_embeddings(count, SIZE, seed=4)).round() / 2 + torch.eye(count, SIZE).double()


def duplicates(count: int) -> Tensor:
    rows = draw_embeddings(count, SIZE, seed=2)
    rows[1], rows[count // 2] = rows[0], rows[count - 1]  # in one class, and in two classes
    return rows


BATCHES: dict[str, tuple[Tensor, list[int]]] = {
    "uneven": (draw_embeddings(len(UNEVEN), SIZE), UNEVEN),
    "near": (0.2 * draw_embeddings(len(UNEVEN), SIZE, seed=1) + 1, UNEVEN),
    "many": (draw_embeddings(48, SIZE, seed=3), 3 * UNEVEN),  # distances by a product
    "duplicates": (duplicates(len(UNEVEN)), UNEVEN),
    "ties": (grid(len(UNEVEN)), UNEVEN),
    "one class": (draw_embeddings(5, SIZE), [0] * 5),
    "no positives": (draw_embeddings(5, SIZE), [0, 1, 2, 3, 4]),
    "a pair": (draw_embeddings(3, SIZE), [0, 0, 1]),
    "a row": (draw_embeddings(1, SIZE), [0]),
}


@contextmanager
def library_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "find_form", lambda loss, miner: None)
        yield


def values(loss: PairLoss, rows: Tensor, labels: list[int], gallery: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """Return the value and the gradients of embeddings and parameters."""
    leaf = rows.clone().requires_grad_()
    loss = loss.double().zero_grad() or loss
    value = loss(leaf, torch.tensor(labels), *(gallery or ()))
    value.backward()
    assert leaf.grad is not None
    return [value.detach(), leaf.grad, *(_or_zeros(part) for part in loss.parameters())]


def _or_zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def assert_same(loss: PairLoss, rows: Tensor, labels: list[int], gallery: tuple[Tensor, Tensor] | None = None) -> None:
    results = values(loss, rows, labels, gallery)
    with library_alone():
        expected = values(loss, rows, labels, gallery)
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [2**18, 100], ids=["one-block", "blocks"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_library(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", block)
    loss = CASES[name]()
    assert find_form(loss.loss, loss.miner) is not None
    for rows, labels in BATCHES.values():
        assert_same(loss, rows, labels)


@pytest.mark.parametrize("block", [2**18, 60])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_library_with_a_gallery(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", block)
    loss = CASES[name]()
    if not loss.takes_gallery or getattr(loss.loss, "swap", False):
        pytest.skip("the library takes no gallery")
    for seed, known in enumerate(([0, 0, 1, 6, 7, 2, 3], [6, 7, 8], [4, 5, 5, 5])):
        gallery = draw_embeddings(len(known), SIZE, seed=10 + seed)
        if block > 60:  # products of other shapes round equal rows differently
            gallery[0] = BATCHES["uneven"][0][0]
        for rows, labels in BATCHES.values():
            assert_same(loss, rows, labels, (gallery, torch.tensor(known)))


class OwnTripletLoss(TripletMarginLoss):  # type: ignore[misc]
    """A loss of the user's, which may compute anything."""


OTHERS: dict[str, Callable[[], PairLoss]] = {
    "a subclass": lambda: plain(OwnTripletLoss()),
    "another reducer": lambda: triplet(reducer=SumReducer()),
    "a mean of the margin loss": lambda: plain(MarginLoss(reducer=MeanReducer())),
    "a regularizer": lambda: plain(ContrastiveLoss(embedding_regularizer=LpRegularizer())),
    "another miner": lambda: plain(ContrastiveLoss(), PairMarginMiner()),
    "a miner of other distances": lambda: plain(TripletMarginLoss(), TripletMarginMiner(distance=CosineSimilarity())),
    "triplets drawn at random": lambda: triplet(triplets_per_anchor=3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_library_computes_all_others(name: str) -> None:
    loss = OTHERS[name]()
    assert find_form(loss.loss, loss.miner) is None
    assert loss(BATCHES["uneven"][0], torch.tensor(UNEVEN)).isfinite()


LARGER = {
    "facility_location": "takes minutes",
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", sorted({path.stem for path in (ROOT / "conf" / "loss").glob("*.yaml")} - {*LARGER}))
def test_memory_is_at_most_eight_numbers_of_each_pair(name: str) -> None:
    batch, size = 1024, 256
    fine = torch.arange(batch) // 4
    labels = torch.stack([fine, fine // 32], dim=1)
    loss = build_losses(settings_of(compose(f"loss={name}")), {"H": size}, labels.numpy())["H"]
    embeddings = draw_embeddings(batch, size, dtype=torch.float32).requires_grad_()
    with LiveBytes() as live:
        loss(embeddings, labels).backward()
    assert live.peak <= 4 * (8 * batch**2 + 8 * batch * size)
