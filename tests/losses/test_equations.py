"""The equations of the papers, against loops that follow them pair by pair."""

import math
import re
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest
import torch
from configurations import CONF, compose
from every_loss import LABELS, batch, value_and_gradient
from examples import examples
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import AngularLoss, ContrastiveLoss, LiftedStructureLoss, MultiSimilarityLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor

from dml.losses.baselines import PairLoss
from dml.losses.memory import CrossBatchMemory
from dml.losses.n_pair import NPairLoss
from dml.runtime.errors import InputError

Loop = Callable[[Tensor, list[int]], Tensor]


def pairs_of(labels: list[int]) -> Iterator[tuple[int, int, bool]]:
    for i, j in permutations(range(len(labels)), 2):
        yield i, j, labels[i] == labels[j]


def distance(first: Tensor, second: Tensor) -> Tensor:
    return (first - second).square().sum().sqrt()


def nra_eq_1(embeddings: Tensor, labels: list[int], margin: float = 1.0) -> Tensor:
    terms = []
    for i, j, is_same in pairs_of(labels):
        gap = distance(embeddings[i], embeddings[j])
        terms.append(gap**2 if is_same else (margin - gap).clamp(min=0) ** 2)
    return torch.stack(terms).mean()


def rll_eq_3(embeddings: Tensor, labels: list[int], margin: float = 1.0) -> Tensor:
    terms = []
    for i, j, is_same in pairs_of(labels):
        if is_same:
            others = [k for k, label in enumerate(labels) if label != labels[i]]
            exps = [(margin - distance(embeddings[row], embeddings[k])).exp() for row in (i, j) for k in others]
            pushed = torch.stack(exps).sum().log() if exps else torch.tensor(-math.inf)
            terms.append((distance(embeddings[i], embeddings[j]) + pushed).clamp(min=0))
    return torch.stack(terms).sum() / (2 * len(terms))


def thesis_eq_2_23(embeddings: Tensor, labels: list[int], degrees: float = 45.0) -> Tensor:
    terms = [embeddings.sum() * 0]
    for i, j, is_same in pairs_of(labels):
        for k, label in enumerate(labels):
            if is_same and label != labels[i]:
                center = (embeddings[i] + embeddings[j]) / 2
                pushed = 4 * math.tan(math.radians(degrees)) ** 2 * (embeddings[k] - center).square().sum()
                terms.append(((embeddings[i] - embeddings[j]).square().sum() - pushed).clamp(min=0))
    return torch.stack(terms).sum() / max(1, len(terms) - 1)


EQUATIONS: dict[str, tuple[str, Loop]] = {
    "nra_eq_1": ("contrastive", nra_eq_1),
    "rll_eq_3": ("lifted", rll_eq_3),
    "thesis_eq_2_23": ("angular", thesis_eq_2_23),
}


def build(form: str, *overrides: str) -> Any:
    name, _ = EQUATIONS[form]
    return instantiate(compose(f"loss={name}", f"loss.form={form}", *overrides).loss)


@pytest.fixture(scope="module", params=EQUATIONS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def on_the_sphere(form: str) -> Any:
    distances = ("loss.loss.distance.normalize_embeddings=true",) if form == "rll_eq_3" else ()
    return build(form, "loss.normalize=true", *distances)


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=9).filter(lambda labels: len({*labels}) < len(labels)),
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.1, 1.0]),
)
@examples(40)
def test_equals_a_loop_over_pairs(form: str, on_the_sphere: Any, labels: list[int], seed: int, spread: float) -> None:
    """Values and gradients; classes that are drawn together have triplets of every kind."""
    embeddings = 1.0 + spread * draw_embeddings(len(labels), 4, seed)
    fast, slow = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    value = on_the_sphere(fast, torch.tensor(labels))
    expected = EQUATIONS[form][1](torch.nn.functional.normalize(slow, dim=1), labels)
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    value.backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad, atol=1e-8, rtol=1e-8)


def test_the_batch_of_the_laws_has_terms_of_both_kinds(form: str) -> None:
    """Otherwise the loops would be compared on zeros; here the embeddings aren't normalized, as in NRA."""
    raw = ("loss.normalize=false", "loss.loss.distance.normalize_embeddings=false")
    loss = build(form, *(raw if form != "thesis_eq_2_23" else raw[:1]))
    embeddings, labels = 0.3 * batch().double(), LABELS[:, 0].tolist()
    value, gradient = value_and_gradient(loss, embeddings, LABELS)
    assert value > 0
    assert value.item() == pytest.approx(EQUATIONS[form][1](embeddings, labels).item(), rel=1e-9)
    assert gradient.any(dim=1).sum() > 10


@pytest.mark.parametrize(
    ("form", "override", "parameters"),
    [
        ("nra_eq_1", "loss.loss.neg_margin=0.4", {"margin": 0.4}),
        ("rll_eq_3", "loss.loss.neg_margin=0.4", {"margin": 0.4}),
        ("thesis_eq_2_23", "loss.loss.alpha=30", {"degrees": 30.0}),
    ],
)
def test_margins_and_angle_are_those_of_the_configuration(
    form: str, override: str, parameters: dict[str, float]
) -> None:
    embeddings = torch.nn.functional.normalize(batch().double(), dim=1)
    equation: Any = EQUATIONS[form][1]
    expected = equation(embeddings, LABELS[:, 0].tolist(), **parameters)
    assert build(form, override)(embeddings, LABELS).item() == pytest.approx(expected.item(), rel=1e-9)
    assert expected.item() != pytest.approx(equation(embeddings, LABELS[:, 0].tolist()).item(), rel=1e-3)


@pytest.mark.parametrize("name", ["contrastive", "lifted", "angular"])
def test_the_default_is_the_librarys_form(name: str) -> None:
    config = compose(f"loss={name}").loss
    assert config.form is None
    library = instantiate(config.loss)
    placed = torch.nn.functional.normalize if config.normalize else lambda rows: rows
    embeddings = batch().double()
    value, gradient = value_and_gradient(instantiate(config), embeddings, LABELS)
    expected, its_gradient = value_and_gradient(
        lambda rows, labels: library(placed(rows), labels[:, 0]) + 0.0, embeddings, LABELS
    )
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(gradient, its_gradient, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("kind", ["distinct", "duplicates", "one class", "no positives"])
def test_degenerate_batches_are_finite(form: str, kind: str, scale: float) -> None:
    embeddings = batch(1, scale).expand(6, -1) if kind == "duplicates" else batch(6, scale)
    labels = {"one class": torch.zeros(6), "no positives": torch.arange(6)}.get(kind, torch.arange(6) // 2).long()
    value, gradient = value_and_gradient(build(form), embeddings, labels)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert value == 0 or kind != "no positives"


def test_an_equation_compares_a_batch_with_itself_alone(form: str) -> None:
    assert not build(form).takes_gallery
    with pytest.raises(InputError, match="with itself alone"):
        CrossBatchMemory(build(form), embedding_dim=8)


@pytest.mark.parametrize(
    ("loss", "miner", "form", "message"),
    [
        (ContrastiveLoss(), None, "rll_eq_3", r"form=rll_eq_3: must be null or nra_eq_1$"),
        (AngularLoss(), None, "2.23", r"form=2\.23: must be null or thesis_eq_2_23$"),
        (MultiSimilarityLoss(), None, "nra_eq_1", r"form=nra_eq_1: must be null$"),
        (ContrastiveLoss(), PairMarginMiner(), "nra_eq_1", "takes the distances of all pairs; needs miner=null"),
        (LiftedStructureLoss(distance=CosineSimilarity()), None, "rll_eq_3", "needs miner=null and LpDistance$"),
    ],
)
def test_what_an_equation_refuses(loss: Any, miner: Any, form: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^loss\.{message}" if message.startswith("form") else message):
        PairLoss(loss, miner, normalize=True, form=form)


def test_angular_and_n_pair_together() -> None:
    """As Wang et al. weight them, and Eq. 2.25 by the overrides that the YAML file gives."""
    text = (CONF / "loss" / "angular_n_pair.yaml").read_text().replace("\\\n#", "")
    [plain, equation] = re.findall(r"python train.py (loss=.*)", text)
    for command, squares, weight in ((plain, True, 1e-3), (equation, False, 0.02)):
        form = "thesis_eq_2_23" if command == equation else "null"
        angular = instantiate(compose("loss=angular", f"loss.form={form}").loss)
        embeddings = batch().double()
        norms = embeddings.norm(dim=1)
        expected = NPairLoss(norm_weight=0.0)(embeddings, LABELS) + 2 * angular(embeddings, LABELS)
        expected = expected + weight * (norms.square() if squares else norms).mean()
        torch.testing.assert_close(instantiate(compose(*command.split()).loss)(embeddings, LABELS), expected)
