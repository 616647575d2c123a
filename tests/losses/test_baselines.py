import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from configurations import compose
from conftest import ROOT
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from dml.losses.baselines import PairLoss, ProxyLoss
from dml.losses.compose import check_pairs
from dml.runtime.errors import InputError

CONF = ROOT / "conf" / "loss"
CLASSES, SIZE = 5, 8
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4])


TERMS = ("threshold_consistent_margin", "intra_pair_variance")  # added to another loss
TARGETS = {path.stem: str(OmegaConf.load(path).get("_target_")) for path in CONF.glob("*.yaml")}


def names(adapter: type[nn.Module]) -> list[str]:
    found = [name for name, target in TARGETS.items() if target == f"{adapter.__module__}.{adapter.__name__}"]
    assert found
    return sorted(found)


def load(name: str) -> DictConfig:
    config = OmegaConf.load(CONF / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    for node in (config, config.loss):
        for key, value in {"num_classes": CLASSES, "embedding_dim": SIZE}.items():
            if OmegaConf.is_missing(node, key):
                node[key] = value
    return config


def build(name: str) -> Any:
    torch.manual_seed(0)
    return instantiate(load(name))


def rows(count: int = len(LABELS), seed: int = 0) -> Tensor:
    return torch.randn(count, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distance(first: Tensor, second: Tensor) -> float:
    return float((F.normalize(first, dim=0) - F.normalize(second, dim=0)).norm())


@pytest.mark.parametrize("name", names(PairLoss))
def test_a_pair_loss_is_the_librarys(name: str) -> None:
    config, loss = load(name), build(name)
    ours, theirs = rows().requires_grad_(), rows().requires_grad_()
    placed = F.normalize(theirs, dim=1) if config.normalize else theirs
    library, miner = instantiate(config.loss), instantiate(config.miner)
    expected = library(placed, LABELS, miner(placed, LABELS) if miner is not None else None)
    value = loss(ours, LABELS)
    torch.testing.assert_close(value, expected)
    assert value > 0
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", names(ProxyLoss))
def test_a_proxy_loss_is_the_librarys(name: str) -> None:
    config, loss = load(name), build(name).double()
    torch.manual_seed(0)
    library = instantiate(config.loss)(num_classes=CLASSES, embedding_size=SIZE).double()
    ours, theirs = rows().requires_grad_(), rows().requires_grad_()
    value, expected = loss(ours, LABELS), library(theirs, LABELS)
    assert value == expected
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert [parameter.grad is not None for parameter in loss.parameters()] == [True]


@pytest.mark.parametrize("name", names(ProxyLoss))
def test_proxies_are_trained_and_stored(name: str) -> None:
    loss = build(name)
    (proxies,) = loss.parameters()
    several = {"soft_triple": (10,), "sub_center_arcface": (3,)}.get(name, ())
    assert loss.proxies.shape == (CLASSES, *several, SIZE)
    assert loss.proxies.data_ptr() == proxies.data_ptr()
    (stored,) = loss.state_dict().values()
    assert stored.data_ptr() == proxies.data_ptr()
    loss(rows(), LABELS)
    assert proxies.dtype == torch.float32
    assert proxies.data_ptr() == stored.data_ptr()


def library_nodes(node: Any) -> Iterator[DictConfig]:
    if OmegaConf.is_dict(node):
        if str(node.get("_target_", "")).startswith("pytorch_metric_learning."):
            yield node
        for key in node:
            if not OmegaConf.is_missing(node, key):
                yield from library_nodes(node[key])


@pytest.mark.parametrize("name", [*names(PairLoss), *names(ProxyLoss), *TERMS, "xbm"])
def test_the_librarys_parameters_are_all_listed(name: str) -> None:
    for node in library_nodes(OmegaConf.load(CONF / f"{name}.yaml")):
        parameters = inspect.signature(get_class(node._target_).__init__).parameters
        own = {key for key, value in parameters.items() if value.kind is value.POSITIONAL_OR_KEYWORD} - {"self"}
        given = {str(key) for key in node}
        assert own - {"num_classes", "embedding_size"} <= given, node._target_
        if ".losses." in node._target_:
            assert {"distance", "reducer"} <= given, node._target_


@pytest.mark.parametrize("name", [*names(PairLoss), *names(ProxyLoss)])
def test_the_order_of_many_uneven_rows_is_irrelevant(name: str) -> None:
    # above 25 rows torch computes distances by a matrix product
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, CLASSES, (40,), generator=generator)
    order = torch.randperm(40, generator=generator)
    loss, embeddings = build(name), rows(40).float()
    straight, shuffled = embeddings.clone().requires_grad_(), embeddings[order].requires_grad_()
    value, other = loss(straight, labels), loss(shuffled, labels[order])
    torch.testing.assert_close(value, other)
    value.backward()
    other.backward()
    assert straight.grad is not None
    torch.testing.assert_close(straight.grad[order], shuffled.grad)


def test_semi_hard_triplets_by_hand() -> None:
    embeddings, terms = rows(), []
    for i, anchor in enumerate(embeddings):
        for j, positive in enumerate(embeddings):
            for k, negative in enumerate(embeddings):
                if i != j and LABELS[i] == LABELS[j] != LABELS[k]:
                    gap = distance(anchor, negative) ** 2 - distance(anchor, positive) ** 2
                    if 0 < gap < 0.2:
                        terms.append(0.2 - gap)
    assert terms
    assert build("triplet")(embeddings, LABELS).item() == pytest.approx(sum(terms) / len(terms))


def split_cosines() -> tuple[Tensor, Tensor]:
    directions = F.normalize(rows(), dim=1)
    cosines, same = directions @ directions.T, LABELS[:, None] == LABELS
    return cosines[same & ~torch.eye(len(LABELS), dtype=torch.bool)], cosines[~same]


def consistent_margin() -> float:
    positives, negatives = split_cosines()
    pulled = [0.9 - float(c) for c in positives if c <= 0.9]
    pushed = [float(c) - 0.5 for c in negatives if c >= 0.5]
    assert pulled
    assert pushed
    return sum(pulled) / len(pulled) + sum(pushed) / len(pushed)


def pair_variance() -> float:
    positives, negatives = split_cosines()
    below = [max(0.0, float(0.99 * positives.mean() - c)) ** 2 for c in positives]
    above = [max(0.0, float(c - 1.01 * negatives.mean())) ** 2 for c in negatives]
    return sum(below) / len(below) + sum(above) / len(above)


@pytest.mark.parametrize(
    ("name", "term", "own_part"),
    [("threshold_consistent_margin", "tcm", consistent_margin), ("intra_pair_variance", "variance", pair_variance)],
)
def test_a_term_joins_any_loss(name: str, term: str, own_part: Callable[[], float]) -> None:
    embeddings = rows()
    for base in ("multi_similarity", "rll"):
        config = compose(f"loss={name}", f"loss@loss.terms.base={base}", f"loss.weights.{term}=0.25")
        joined, alone = instantiate(config.loss), instantiate(compose(command=f"loss/{base}").loss)
        expected = alone(embeddings, LABELS).item() + 0.25 * own_part()
        assert joined(embeddings, LABELS).item() == pytest.approx(expected)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_arcface_on_a_proxy_has_a_finite_gradient(sign: float) -> None:
    loss = build("arcface")
    (proxies,) = loss.parameters()
    embeddings = sign * proxies.detach().T.clone()
    embeddings.requires_grad_()
    loss(embeddings, torch.arange(CLASSES)).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
    assert proxies.grad.isfinite().all()


def test_contrastive_with_a_gallery_by_hand() -> None:
    loss, embeddings, gallery = build("contrastive"), rows(), rows(7, seed=1)
    gallery_labels = torch.tensor([0, 3, 3, 1, 5, 6, 2])
    pulled, pushed = [], []
    columns, labels = [*embeddings, *gallery], [*LABELS, *gallery_labels]
    for i, anchor in enumerate(embeddings):
        for j, other in enumerate(columns):
            if i != j and LABELS[i] == labels[j]:
                pulled.append(distance(anchor, other))
            elif i != j and distance(anchor, other) < 1:
                pushed.append(1 - distance(anchor, other))
    expected = sum(pulled) / len(pulled) + sum(pushed) / len(pushed)
    assert loss(embeddings, LABELS, gallery, gallery_labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", names(PairLoss))
def test_an_empty_gallery_changes_nothing(name: str) -> None:
    loss, nobody = build(name), (rows(0), LABELS[:0])
    if loss.takes_gallery:
        torch.testing.assert_close(loss(rows(), LABELS, *nobody), loss(rows(), LABELS))
    else:
        with pytest.raises(InputError, match="with itself alone"):
            loss(rows(), LABELS, *nobody)


@pytest.mark.parametrize("name", names(PairLoss))
def test_a_row_is_no_positive_of_itself_beside_a_gallery(name: str) -> None:
    loss, embeddings = build(name), rows(3).requires_grad_()
    if not loss.takes_gallery:
        pytest.skip("compares a batch with itself alone")
    value = loss(embeddings, torch.tensor([0, 1, 2]), rows(2, seed=1), torch.tensor([3, 4]))
    assert value == 0
    # with a positive in the gallery there is something to compare
    assert loss(embeddings, torch.tensor([0, 1, 2]), 9.0 - rows(2, seed=1), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize("name", names(PairLoss))
def test_a_loss_of_pairs_needs_two_images_of_a_class(name: str) -> None:
    with pytest.raises(InputError, match=r"^sampler.images_per_class=1: PairLoss compares images of one class"):
        check_pairs(instantiate(load(name)), images_per_class=1)
    check_pairs(instantiate(load(name)), images_per_class=2)
