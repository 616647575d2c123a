from typing import Any, ClassVar

import pytest
import torch
from conftest import ROOT
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from dml.losses.baselines import PairLoss
from dml.losses.compose import AtLevel, WeightedSum, check_pairs
from dml.losses.csl import CSLLoss
from dml.losses.memory import CrossBatchMemory
from dml.losses.regularizers import EmbeddingDrift, EmbeddingNorm, embedding_drift, embedding_norm
from dml.losses.rll import RankedListLoss
from dml.losses.tuplet import TupletLoss
from dml.runtime.errors import InputError

CONF = ROOT / "conf" / "loss"
LABELS = torch.tensor([[i // 2, i // 4, i // 8] for i in range(12)])


class LabelSum(nn.Module):
    """Shows the labels it is given."""

    needs_positives: ClassVar[bool] = True

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        assert labels.ndim == 1
        return embeddings.sum() * 0 + labels.sum()


def rows(seed: int = 0) -> Tensor:
    return torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_loss_sees_its_level(level: int) -> None:
    assert AtLevel(LabelSum(), level)(rows(), LABELS) == LABELS[:, level].sum()
    loss = RankedListLoss()
    assert AtLevel(loss, level)(rows(), LABELS) == loss(rows(), LABELS[:, level])


def test_flat_labels_have_level_0() -> None:
    assert AtLevel(LabelSum(), 0)(rows(), LABELS[:, 1]) == LABELS[:, 1].sum()


def test_refuses_a_level_from_the_end() -> None:
    with pytest.raises(InputError, match=r"level=-1: must be a whole number"):
        AtLevel(LabelSum(), -1)


def test_only_the_finest_level_needs_two_images_of_a_class() -> None:
    assert AtLevel(LabelSum(), 0).needs_positives
    assert not AtLevel(LabelSum(), 1).needs_positives
    assert not AtLevel(EmbeddingNorm(), 0).needs_positives
    norm = EmbeddingNorm()
    check_pairs(WeightedSum({"super-class": AtLevel(LabelSum(), 1), "norm": norm}, {"super-class": 1, "norm": 1}), 1)
    with pytest.raises(InputError, match=r"images_per_class=1: WeightedSum compares images of one class"):
        check_pairs(WeightedSum({"class": AtLevel(LabelSum(), 0), "norm": norm}, {"class": 1, "norm": 1}), 1)


def test_a_loss_that_compares_images_needs_two_classes() -> None:
    line = r"sampler\.classes_per_batch=1: TupletLoss compares images of different classes too and needs at least 2"
    with pytest.raises(InputError, match=line):
        check_pairs(TupletLoss(), images_per_class=2, classes_per_batch=1)
    memory = CrossBatchMemory(PairLoss(ContrastiveLoss(), None, normalize=True), embedding_dim=4)
    for loss in (memory, EmbeddingNorm()):  # the classes of earlier batches are in the memory
        check_pairs(loss, images_per_class=2, classes_per_batch=1)


def test_a_sum_is_weighted_with_its_gradient() -> None:
    terms = {"tuplet": TupletLoss(), "norm": EmbeddingNorm()}
    leaf = rows().requires_grad_()
    value = WeightedSum(terms, {"norm": 0.02, "tuplet": 3.0})(leaf, LABELS)
    (gradient,) = torch.autograd.grad(value, leaf)
    expected = 3.0 * TupletLoss()(leaf, LABELS) + 0.02 * embedding_norm(leaf)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, leaf)[0])


def test_indices_reach_the_term_that_asks_for_them() -> None:
    drift, stored, indices = EmbeddingDrift(), rows(1), torch.arange(12).flip(0)
    drift.stored = stored
    loss = WeightedSum({"norm": EmbeddingNorm(), "drift": AtLevel(drift, 1)}, {"norm": 0.0, "drift": 0.3})
    assert loss.needs_indices
    assert not WeightedSum({"norm": EmbeddingNorm()}, {"norm": 1.0}).needs_indices
    torch.testing.assert_close(loss(rows(), LABELS, indices=indices), 0.3 * embedding_drift(rows(), stored[indices]))


def test_a_sum_needs_positives_if_each_term_does() -> None:
    pair, norm = TupletLoss(), EmbeddingNorm()
    assert WeightedSum({"a": pair, "b": AtLevel(pair, 0)}, {"a": 1, "b": 1}).needs_positives
    assert not WeightedSum({"a": pair, "b": norm}, {"a": 1, "b": 1}).needs_positives
    assert not WeightedSum({"a": pair, "b": AtLevel(pair, 1)}, {"a": 1, "b": 1}).needs_positives


def test_parameters_of_the_terms_are_its_own() -> None:
    loss = WeightedSum({"csl": CSLLoss(6, 4), "flat": AtLevel(CSLLoss(3, 4), 1)}, {"csl": 1.0, "flat": 1.0})
    assert {name for name, _ in loss.named_parameters()} == {"terms.csl.proxies", "terms.flat.loss.proxies"}


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        ({"norm": "abc"}, "loss.weights.norm=abc: must be a finite number"),
        (None, "loss.weights names none, loss.terms names norm: each term needs one weight"),
        ([1.0], "loss.weights names none"),
        ({"norm": 1.0, "drift": 1.0}, r"weights names norm, drift, loss\.terms names norm: each"),
    ],
)
def test_refuses_weights_that_are_no_numbers_of_the_terms(weights: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        WeightedSum({"norm": EmbeddingNorm()}, weights)


def test_the_yaml_of_the_levels_sums_over_them() -> None:
    loss, flat = instantiate(OmegaConf.load(CONF / "rll_levels.yaml")), RankedListLoss()
    expected = flat(rows(), LABELS[:, 0]) + flat(rows(), LABELS[:, 1])
    torch.testing.assert_close(loss(rows(), LABELS), expected)
    coarse = instantiate(OmegaConf.load(CONF / "rll_coarse.yaml"))
    assert coarse(rows(), LABELS) == flat(rows(), LABELS[:, 1])


def test_the_yaml_of_the_regularized_tuplet_has_the_thesis_weights() -> None:
    loss = instantiate(OmegaConf.load(CONF / "tuplet_norm.yaml"))
    torch.testing.assert_close(loss(rows(), LABELS), TupletLoss()(rows(), LABELS) + 0.02 * embedding_norm(rows()))
