"""Losses of images with several labels: positives share at least one."""

import numpy as np
import pytest
import torch
from every_loss import LABELS, LOSSES, SIZE, batch, build, value_and_gradient
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dml.losses.loss_contract import check_takes_label_sets
from dml.losses.n_pair import NPairLoss
from dml.losses.recall_at_k import similarity_mixup
from dml.losses.roadmap import CalibrationLoss
from dml.ops.pairs import pair_masks, related
from dml.runtime.errors import InputError

SETS = torch.tensor([[0, 1], [0, -1], [1, -1], [2, 3], [3, -1], [2, 4], [4, 0], [5, -1], [-1, 6], [6, 5]])
TAKEN = [name for name in LOSSES if not any(getattr(part, "needs_classes", False) for part in build(name).modules())]
PER_QUERY = ["h_ap", "recall_at_k", "rll", "smooth_ap"]


def list_related(sets: Tensor) -> list[list[bool]]:
    labels = [{*row} - {-1} for row in sets.tolist()]
    return [[bool(first & second) for second in labels] for first in labels]


sets_of_ids = st.lists(st.lists(st.integers(-1, 4), min_size=3, max_size=3), min_size=1, max_size=6).map(torch.tensor)


@given(sets_of_ids)
def test_related_is_sharing_a_label(sets: Tensor) -> None:
    same = torch.tensor(list_related(sets))
    assert torch.equal(related(sets, sets), same)
    assert np.array_equal(related(sets.numpy(), sets.numpy()), same.numpy())
    own_items = sets[None].expand(len(sets), -1, -1)
    assert torch.equal(related(sets, own_items), same)
    positives, negatives = pair_masks(sets)
    assert torch.equal(positives, same & ~torch.eye(len(sets), dtype=torch.bool))
    assert torch.equal(negatives, ~same)


@pytest.mark.parametrize("name", LOSSES)
def test_one_label_an_image_gives_the_same_bits(name: str) -> None:
    value, gradient = value_and_gradient(build(name), batch(), LABELS)
    padding = torch.full((*LABELS.shape, 2), -1)
    extra = 100 + torch.arange(LABELS.numel()).view(LABELS.shape)  # a label that no other image has
    forms = [LABELS[:, :, None]]
    if name in TAKEN:
        forms += [torch.cat([padding, LABELS[:, :, None]], dim=2), torch.stack([extra, LABELS], dim=2)]
    for labels in forms:
        same, its_gradient = value_and_gradient(build(name), batch(), labels)
        assert value == same
        assert torch.equal(gradient, its_gradient)


@pytest.mark.parametrize("name", sorted({*LOSSES} - {*TAKEN}))
def test_a_loss_of_single_labels_says_so(name: str) -> None:
    loss = build(name)
    with pytest.raises(InputError, match=r"^loss: \w+ needs a single label of each image; "):
        check_takes_label_sets(loss)


def test_which_losses_need_single_labels() -> None:
    """Those of the library, of proxies, of a boundary for each class, and of the a-th image of each class."""
    assert {"rll", "nra", "tuplet", "n_pair", "smooth_ap", "h_ap", "recall_at_k", "roadmap"} <= {*TAKEN}
    assert not {"cluster", "csl", "happier", "softmax", "contrastive", "triplet", "arcface", "xbm"} & {*TAKEN}
    assert NPairLoss(form="published").needs_classes


@pytest.mark.parametrize("name", PER_QUERY)
def test_each_query_has_its_own_positives(name: str) -> None:
    """A query's term is that of a batch in which what is related to it is one class, and all else classes of one."""
    loss, embeddings, total = build(name), batch(len(SETS)), torch.zeros(())
    for query, row in enumerate(list_related(SETS)):
        labels = torch.tensor([[0 if same else 1 + place] for place, same in enumerate(row)])
        total += loss(embeddings, labels, queries=slice(query, query + 1)) / len(SETS)
    torch.testing.assert_close(loss(embeddings, SETS[:, None]), total)


def softplus_sum(gaps: list[Tensor]) -> Tensor:
    return (1 + sum(gap.exp() for gap in gaps)).log()


def loop(name: str, rows: Tensor) -> Tensor:
    """The formula of a loss over the pairs that share a label."""
    same, places = list_related(SETS), range(len(SETS))
    near = [[j for j in places if j != i and same[i][j]] for i in places]
    far = [[j for j in places if not same[i][j]] for i in places]
    pairs = [(i, j) for i in places for j in near[i]]
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosines, products = unit @ unit.T, rows @ rows.T
    if name == "n_pair":
        terms = [softplus_sum([products[i, k] - products[i, j] for k in far[i]]) for i, j in pairs]
        return torch.stack(terms).mean() + 1e-3 * rows.square().sum(dim=1).mean()
    if name == "tuplet":
        all_others = [products[i, [*near[i], *far[i]]].logsumexp(dim=0) for i in places]
        terms = [all_others[i] - products[i, near[i]].exp().mean().log() for i in places if near[i]]
        return torch.stack(terms).mean()
    too_far = [0.9 - cosines[i, j] for i, j in pairs if cosines[i, j] < 0.9]
    too_near = [cosines[i, k] - 0.6 for i in places for k in far[i] if cosines[i, k] > 0.6]
    return torch.stack(too_far).mean() + torch.stack(too_near).mean()


@pytest.mark.parametrize("name", ["n_pair", "tuplet", "calibration"])
def test_a_loss_is_its_formula_over_pairs_that_share_a_label(name: str) -> None:
    rows = batch(len(SETS)).double()
    loss = CalibrationLoss() if name == "calibration" else build(name)
    torch.testing.assert_close(loss(rows, SETS[:, None]), loop(name, rows), rtol=1e-6, atol=0.0)


def test_a_virtual_item_has_the_labels_that_both_have() -> None:
    sets = torch.tensor([[0, 1], [1, 2], [3, -1]])
    items, labels = similarity_mixup(torch.eye(3, SIZE), sets, torch.tensor([0.25]))
    assert items[3, :3].tolist() == [0.25, 0.75, 0.0]
    assert labels.tolist() == [[0, 1], [1, 2], [3, -1], [-1, 1]]
