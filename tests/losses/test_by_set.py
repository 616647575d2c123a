"""A loss of each data set by itself equals what each data set alone would have."""

import numpy as np
import pytest
import torch
from configurations import compose, settings_of
from torch import nn

from dml.losses.compose import BySet
from dml.losses.proxies import begin_at_class_means, proxy_sets
from dml.run.builders import build_losses
from dml.runtime.errors import InputError

# three classes in two groups, two classes in two groups
LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 2], [3, 2], [4, 3], [4, 3]])
DOMAIN = np.array(["z"] * 5 + ["a"] * 4)  # the order is that of the classes, not of the names
SIZE = 6


def build(*overrides: str) -> BySet:
    torch.manual_seed(0)
    config = compose("loss=by_set", *overrides)
    loss = build_losses(settings_of(config), {"H": SIZE}, LABELS.numpy(), DOMAIN)["H"]
    assert isinstance(loss, BySet)
    return loss


def draw_embeddings() -> torch.Tensor:
    return torch.randn(9, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("inner", ["cluster", "softmax", "proxy_anchor", "rll", "csl", "happier", "rll_coarse"])
def test_each_data_set_has_a_loss_of_its_rows(inner: str) -> None:
    loss, embeddings = build(f"loss@loss.inner={inner}"), draw_embeddings()
    assert loss.first_classes == [[0, 0], [3, 2]]
    value = loss(embeddings, LABELS)
    first = loss.inner[0](embeddings[:5], LABELS[:5])
    second = loss.inner[1](embeddings[5:], LABELS[5:] - torch.tensor([3, 2]))
    torch.testing.assert_close(value, 5 / 9 * first + 4 / 9 * second)
    torch.testing.assert_close(loss(embeddings[:5], LABELS[:5]), first)  # a batch of one data set


def test_proxies_are_of_the_classes_of_each() -> None:
    loss = build()
    sets = list(proxy_sets(loss, [5, 4], SIZE))
    assert [(level, len(proxies), first) for level, proxies, first in sets] == [(0, 3, 0), (0, 2, 3)]
    embeddings = draw_embeddings()
    begin_at_class_means(sets, embeddings, LABELS)
    unit = nn.functional.normalize(embeddings, dim=1)
    for _, proxies, first in sets:
        for number, proxy in enumerate(nn.functional.normalize(proxies.detach(), dim=1)):
            mean = nn.functional.normalize(unit[LABELS[:, 0] == first + number].sum(dim=0), dim=0)
            torch.testing.assert_close(proxy, mean)
    assert list(proxy_sets(build("loss@loss.inner=rll"), [5, 4], SIZE)) == []


def test_images_of_one_data_set_leave_the_proxies_of_the_other() -> None:
    loss = build()
    loss(draw_embeddings()[:5], LABELS[:5]).backward()
    assert [next(part.parameters()).grad is None for part in loss.inner] == [False, True]


def test_classes_that_data_sets_share_are_refused() -> None:
    with pytest.raises(InputError, match="loss=by_set: the numbers of the data sets' classes overlap"):
        build_losses(settings_of(compose("loss=by_set")), {"H": SIZE}, LABELS.numpy(), DOMAIN[::2].repeat(2)[:9])


def test_traits_are_those_of_the_inner_loss() -> None:
    assert build("loss@loss.inner=rll").needs_positives
    assert not build().needs_positives
