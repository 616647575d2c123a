"""The Matryoshka loss against a loop over the prefixes, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from configurations import compose, settings_of
from loss_batches import draw_embeddings
from omegaconf import OmegaConf
from torch import Tensor, nn

from dml.losses.csl import CSLLoss
from dml.losses.matryoshka import MatryoshkaLoss, choose_sizes
from dml.losses.proxies import begin_at_class_means, proxy_sets
from dml.losses.regularizers import EmbeddingDrift
from dml.losses.rll import RankedListLoss
from dml.losses.tuplet import TupletLoss
from dml.run.builders import build_losses
from dml.runtime.errors import InputError

SIZES, WEIGHTS = [3, 8, 20], [1.0, 0.5, 2.0]
LABELS = torch.stack([torch.arange(12) // 3, torch.arange(12) // 6], dim=1)


def build(*overrides: str, size: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return build_losses(settings_of(compose("loss=matryoshka", *overrides)), {"H": size}, LABELS.numpy())["H"]


def proxy_softmax(embeddings: Tensor, proxies: Tensor, temperature: float) -> Tensor:
    """The cluster loss of HAPPIER, image by image."""
    values = []
    for row, label in zip(embeddings, LABELS[:, 0].tolist(), strict=True):
        cosines = torch.stack([row @ proxy / (row.norm() * proxy.norm()) for proxy in proxies])
        values.append(-(cosines / temperature)[label] + (cosines / temperature).exp().sum().log())
    return torch.stack(values).mean()


def test_value_and_gradient_are_those_of_a_loop_over_prefixes_with_own_proxies() -> None:
    loss = build("loss@loss.inner=cluster", f"loss.sizes={SIZES}", f"loss.weights={WEIGHTS}").double()
    sets = [proxies for _, proxies in proxy_sets(loss, [4, 2], 20)]
    assert [tuple(proxies.shape) for proxies in sets] == [(4, size) for size in SIZES]
    leaf = draw_embeddings(12, 20).requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for size, weight, proxies in zip(SIZES, WEIGHTS, sets, strict=True):
        prefix = torch.stack([torch.stack([row[i] for i in range(size)]) for row in leaf])
        expected = expected + weight * proxy_softmax(prefix, proxies, temperature=0.05)
    value = loss(leaf, LABELS)
    torch.testing.assert_close(value, expected)
    inputs = [leaf, *sets]
    for found, wanted in zip(torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(found, wanted)


def test_each_weight_is_1_and_the_sizes_are_halves_unless_given() -> None:
    sizes = [8, 16, 32]
    loss = build("loss@loss.inner=multi_similarity", size=32)
    embeddings = draw_embeddings(12, 32, seed=1, dtype=torch.float32)
    single = build_losses(settings_of(compose("loss=multi_similarity")), {"H": 32}, LABELS.numpy())["H"]
    expected = sum(single(embeddings[:, :size], LABELS) for size in sizes)
    torch.testing.assert_close(loss(embeddings, LABELS), expected)
    assert choose_sizes(None, 48) == [12, 24, 48]
    assert choose_sizes(None, 15) == [15]
    assert choose_sizes(None, 5) == [5]


def test_levels_and_the_hierarchy_reach_every_prefix() -> None:
    config = compose("loss=matryoshka", "loss.sizes=[8,16]")
    OmegaConf.set_struct(config, False)
    cluster = {"_target_": "dml.losses.happier.ClusterLoss", "num_classes": "???", "embedding_dim": "???"}
    config.loss.inner = {"_target_": "dml.losses.compose.AtLevel", "level": 1, "loss": cluster}
    loss = build_losses(settings_of(config), {"H": 16}, LABELS.numpy())["H"]
    assert [(level, proxies.shape) for level, proxies in proxy_sets(loss, [4, 2], 16)] == [(1, (2, 8)), (1, (2, 16))]
    hierarchies = [part.hierarchy for part in build("loss@loss.inner=csl").modules() if isinstance(part, CSLLoss)]
    assert len(hierarchies) == 2
    assert all(torch.equal(hierarchy, LABELS.unique(dim=0)) for hierarchy in hierarchies)


def test_proxies_begin_at_the_class_means_of_their_prefix() -> None:
    loss = build("loss@loss.inner=cluster", "loss.sizes=[8,20]")
    embeddings = draw_embeddings(12, 20, dtype=torch.float32)
    sets = list(proxy_sets(loss, [4, 2], 20))
    begin_at_class_means(sets, embeddings, LABELS)
    for _, proxies in sets:
        prefix = F.normalize(embeddings[:, : proxies.shape[1]], dim=1)
        means = torch.stack([prefix[LABELS[:, 0] == label].sum(dim=0) for label in range(4)])
        torch.testing.assert_close(F.normalize(proxies.detach(), dim=1), F.normalize(means, dim=1))


def test_traits_are_those_of_the_inner_loss() -> None:
    assert MatryoshkaLoss([RankedListLoss(), TupletLoss()], [2, 4]).needs_positives
    assert not build("loss@loss.inner=cluster").needs_positives
    leaf = draw_embeddings(12, 20)[:3].requires_grad_()
    value = MatryoshkaLoss([RankedListLoss(), TupletLoss()], [2, 4])(leaf, torch.arange(3))
    assert value == 0
    assert (torch.autograd.grad(value, leaf)[0] == 0).all()


def test_refuses_what_no_prefix_can_have() -> None:
    two = [TupletLoss(), TupletLoss()]
    with pytest.raises(InputError, match=r"loss\.sizes=\[4, 2\]: must be a list of ascending"):
        MatryoshkaLoss(two, [4, 2])
    with pytest.raises(InputError, match=r"loss\.weights=\[1\.0\]: one weight for each"):
        MatryoshkaLoss(two, [2, 4], [1.0])
    with pytest.raises(InputError, match=r"loss\.inner: EmbeddingDrift compares whole embeddings with stored ones"):
        MatryoshkaLoss([EmbeddingDrift()], [2])
    with pytest.raises(InputError, match=r"loss\.sizes=\[2, 30\]: an embedding has 20 dimensions"):
        MatryoshkaLoss(two, [2, 30])(draw_embeddings(12, 20), LABELS)
