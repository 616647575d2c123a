"""Laws that hold for every loss, found by its YAML."""

from copy import deepcopy
from inspect import signature

import pytest
import torch
from every_loss import LABELS, LOSSES, batch, build, value_and_gradient
from torch import nn

from dml.losses.baselines import OpenCosineSimilarity
from dml.losses.loss_contract import Loss
from dml.runtime.errors import InputError

DOUBLE = batch().double()


@pytest.fixture(params=LOSSES)
def loss(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param)


def test_the_order_of_rows_is_irrelevant(loss: nn.Module) -> None:
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(2))
    value, gradient = value_and_gradient(loss, batch(), LABELS)
    shuffled, its_gradient = value_and_gradient(loss, batch()[order], LABELS[order])
    torch.testing.assert_close(value, shuffled)
    torch.testing.assert_close(gradient[order], its_gradient)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_of_any_whole_numbers(loss: nn.Module, dtype: torch.dtype) -> None:
    same, its_gradient = value_and_gradient(deepcopy(loss), batch(), LABELS)
    value, gradient = value_and_gradient(loss, batch(), LABELS.to(dtype))
    assert value == same
    assert torch.equal(gradient, its_gradient)


@pytest.mark.parametrize(
    "labels", [LABELS[:1], LABELS[:-1], torch.cat([LABELS, LABELS[:1]])], ids=["one", "few", "many"]
)
def test_another_number_of_labels_is_refused(loss: nn.Module, labels: torch.Tensor) -> None:
    """Indexing and broadcasting would give a value for most of them."""
    with pytest.raises(InputError, match=rf"labels of shape \({len(labels)}.*\(15, \d+\): must be \(B,\) or \(B, L\)"):
        loss(batch(), labels)


@pytest.mark.parametrize("name", ["tuplet", "n_pair", "csl", "nra", "happier", "recall_at_k"])
def test_a_written_out_gradient_refuses_a_second_one(name: str) -> None:
    embeddings = batch().requires_grad_()
    with pytest.raises(RuntimeError, match="differentiable once: create_graph=True"):
        torch.autograd.grad(build(name)(embeddings, LABELS), embeddings, create_graph=True)


def test_float64_is_kept_throughout(loss: nn.Module) -> None:
    """A quotient of a bool and a whole number, for one, would have torch's default type instead."""
    loss.double()
    values = []
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            torch.manual_seed(0)
            values.append(value_and_gradient(deepcopy(loss), DOUBLE, LABELS))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(values[0][0], values[1][0])
    assert torch.equal(values[0][1], values[1][1])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_any_magnitude_is_finite(loss: nn.Module, scale: float) -> None:
    value, gradient = value_and_gradient(loss, batch(scale=scale), LABELS)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_duplicates_are_finite(loss: nn.Module) -> None:
    value, gradient = value_and_gradient(loss, batch(1).expand(len(LABELS), -1), LABELS)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_one_class_is_finite(loss: nn.Module) -> None:
    value, gradient = value_and_gradient(loss, batch(6), torch.zeros(6, 2, dtype=torch.long))
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_no_positives_is_exactly_zero_for_a_loss_that_needs_them(loss: nn.Module) -> None:
    needs_positives = getattr(loss, "needs_positives", False)
    labels = torch.arange(3)[:, None].repeat(1, 2)
    if not needs_positives:  # it compares with proxies, or images of a coarser level
        labels[:, 1] = 0
    value, gradient = value_and_gradient(loss, batch(3), labels)
    assert (value == 0) == needs_positives
    assert (gradient == 0).all() == needs_positives


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(loss: nn.Module, dtype: torch.dtype) -> None:
    half = batch().to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        value, gradient = value_and_gradient(loss, half, LABELS)
    exact, _ = value_and_gradient(loss, half.float(), LABELS)
    torch.testing.assert_close(value.float(), exact)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_says_its_parameters(name: str) -> None:
    for module in build(name).modules():
        if not type(module).__module__.startswith("dml.losses") or type(module) is OpenCosineSimilarity:
            continue
        assert isinstance(module, Loss)
        for parameter in signature(type(module)).parameters.keys() - {"num_classes", "embedding_dim", "args", "kwargs"}:
            has_own_line = isinstance(getattr(module, parameter), Loss | nn.ModuleDict | nn.ModuleList)
            assert has_own_line or f"{parameter}=" in module.extra_repr()


def test_parameters_are_said_with_their_values() -> None:
    assert repr(build("rll")).startswith("RankedListLoss(alpha=1.2, margin=0.4, negative_temperature=10.0, ")
    assert "loss=ContrastiveLoss(pos_margin=1, neg_margin=0.5), miner=None, normalize=True" in repr(build("xbm"))
    assert "weights={'h_ap': 0.9, 'cluster': 0.1}" in repr(build("happier"))
