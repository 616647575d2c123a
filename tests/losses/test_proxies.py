import numpy as np
import pytest
import torch
import torch.nn.functional as F
from configurations import settings_of
from conftest import ROOT
from every_loss import compose_loss
from torch import nn

from dml.losses.compose import AtLevel, WeightedSum
from dml.losses.happier import ClusterLoss
from dml.losses.proxies import begin_at_class_means, check_class_means, proxy_sets
from dml.run import builders
from dml.runtime.errors import InputError

CLASSES, SIZE = 6, 5
LABELS = torch.stack([torch.arange(24) % CLASSES, torch.arange(24) % 2], dim=1)
HAPPIER = {"happier", "happier_f", "happier_f_release"}
SEVERAL = {"soft_triple": 10, "sub_center_arcface": 3}
ONE = {"arcface", "cluster", "cosface", "csl", "normalized_softmax", "proxy_anchor", "proxy_nca"} | HAPPIER
WITH_PROXIES = ONE | {*SEVERAL}


def embeddings(seed: int = 0) -> torch.Tensor:
    return torch.randn(24, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=sorted(path.stem for path in (ROOT / "conf" / "loss").glob("*.yaml")))
def loss(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    config = compose_loss(request.param)
    torch.manual_seed(0)
    return request.param, builders.build_losses(settings_of(config), {"H": SIZE}, LABELS.numpy())["H"]


def test_every_loss_with_proxies_begins_at_the_means(loss: tuple[str, nn.Module]) -> None:
    name, module = loss
    sets = list(proxy_sets(module, [CLASSES, 2], SIZE))
    assert bool(sets) == (name in WITH_PROXIES)
    drawn = [proxies.detach().clone() for _, proxies in sets]
    rows = embeddings()
    before = module(rows, LABELS).item() if sets else 0.0
    begin_at_class_means(sets, rows, LABELS.to(torch.uint8))  # any whole numbers
    for (level, proxies), before_it in zip(sets, drawn, strict=True):
        assert (level, proxies.shape) == (0, (CLASSES, SEVERAL[name], SIZE) if name in SEVERAL else (CLASSES, SIZE))
        for own in range(CLASSES):
            mean = F.normalize(
                torch.stack([F.normalize(row, dim=0) for row in rows[LABELS[:, 0] == own]]).sum(0), dim=0
            )
            for found, was in zip(proxies[own].view(-1, SIZE), before_it[own].view(-1, SIZE), strict=True):
                apart = 0.1 * F.normalize(was, dim=0) if name in SEVERAL else 0.0
                assert F.cosine_similarity(found, mean + apart, dim=0).item() == pytest.approx(1.0, abs=1e-6)
        torch.testing.assert_close(proxies.norm(dim=-1), before_it.norm(dim=-1))
    if sets:  # it is the loss's own proxies that were turned, not copies of them
        assert module(rows, LABELS).item() < before


def test_a_coarser_level_has_the_means_of_its_own_classes() -> None:
    terms = {"fine": ClusterLoss(CLASSES, SIZE), "coarse": AtLevel(ClusterLoss(2, SIZE), level=1)}
    module, rows = WeightedSum(terms, {"fine": 1.0, "coarse": 1.0}), embeddings()
    sets = list(proxy_sets(module, [CLASSES, 2], SIZE))
    begin_at_class_means(sets, rows, LABELS)
    assert [(level, len(proxies)) for level, proxies in sets] == [(0, CLASSES), (1, 2)]
    means = torch.stack([F.normalize(rows, dim=1)[LABELS[:, 1] == own].sum(dim=0) for own in range(2)])
    found = terms["coarse"].loss.proxies
    torch.testing.assert_close(F.normalize(found.detach(), dim=1), F.normalize(means, dim=1))


def test_a_proxy_without_a_mean_stays_where_it_was_drawn() -> None:
    module, rows = ClusterLoss(CLASSES, SIZE), embeddings()
    rows[7], rows[1] = -rows[1], rows[1]  # class 1 cancels out
    kept = np.isin(LABELS[:, 0].numpy(), (0, 1)) & (np.arange(24) < 12)
    before = module.proxies.detach().clone()
    begin_at_class_means(proxy_sets(module, [CLASSES, 2], SIZE), rows[kept], LABELS[kept])
    assert torch.equal(module.proxies[1:], before[1:])
    assert not torch.equal(module.proxies[0], before[0])


class OwnProxies(nn.Module):
    """A loss of a user's with a tensor of any shape that is named proxies."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.zeros(shape))


@pytest.mark.parametrize(
    ("shape", "is_found"),
    [
        ((CLASSES, SIZE), True),
        ((CLASSES, SIZE - 1), True),  # those of a prefix
        ((CLASSES, 2, SIZE), True),  # two of each class
        ((2 * CLASSES, SIZE), False),  # row 1 isn't one of class 1
        ((CLASSES, 2, 2, SIZE), False),
        ((SIZE, CLASSES), False),
        ((CLASSES,), False),
    ],
)
def test_proxies_of_ones_own_have_a_place_for_each_class(shape: tuple[int, ...], is_found: bool) -> None:
    loss = OwnProxies(*shape)
    assert bool(list(proxy_sets(loss, [CLASSES, 2], SIZE))) == is_found
    if not is_found:
        beginning = (
            r"^training.proxies=class_means: OwnProxies learns no proxies of the classes, .* of shape \(6, 5\), "
        )
        line = beginning + r"or of three dimensions with several of each class; use training.proxies=null$"
        with pytest.raises(InputError, match=line):
            check_class_means({"H": loss}, [CLASSES, 2], {"H": SIZE})
