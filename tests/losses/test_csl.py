import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import draw_embeddings
from torch import Tensor

from dml.losses.csl import CSLLoss
from dml.runtime.errors import InputError

# six finest classes in four middle ones in two coarse ones
HIERARCHY = torch.tensor([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1], [4, 2, 1], [5, 3, 1]])


def made(margins: list[float] | None = None, scale: float = 32.0, seed: int = 0) -> CSLLoss:
    torch.manual_seed(seed)
    return CSLLoss(len(HIERARCHY), 4, margins=margins, scale=scale).double()


def by_hand(embeddings: Tensor, labels: Tensor, proxies: Tensor, known: set[int], scale: float) -> Tensor:
    """An embedding, a level and a proxy at a time; margins of three levels."""
    total = torch.zeros((), dtype=embeddings.dtype)
    for level, margin in enumerate([0.25, 0.35, 0.45]):
        for embedding, label in zip(embeddings, labels, strict=True):
            own = F.cosine_similarity(embedding, proxies[int(label[0])], dim=0)
            pushed = torch.zeros((), dtype=embeddings.dtype)
            for proxy in known:
                if HIERARCHY[proxy, level] != label[level]:
                    other = F.cosine_similarity(embedding, proxies[proxy], dim=0)
                    pushed = pushed + torch.exp(scale * (other - own + margin))
            total = total + torch.log(1 + pushed) / len(embeddings)
    return total


@given(
    classes=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 32.0]),
    learned=st.booleans(),
)
@examples(40)
def test_equals_a_loop_over_proxies(classes: list[int], seed: int, scale: float, learned: bool) -> None:
    loss = made(scale=scale, seed=seed)
    if learned:
        loss.set_hierarchy(HIERARCHY)
    embeddings = draw_embeddings(len(classes), 4, seed)
    fast, slow = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    proxies = loss.proxies.detach().clone().requires_grad_()
    labels = HIERARCHY[classes]
    value = loss(fast, labels)
    expected = by_hand(slow, labels, proxies, set(range(6)) if learned else set(classes), scale)
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    value.backward()
    if expected.requires_grad:
        expected.backward()
        torch.testing.assert_close(fast.grad, slow.grad, atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(loss.proxies.grad, proxies.grad, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("levels", "margins"), [(1, [0.25]), (2, [0.25, 0.45]), (3, [0.25, 0.35, 0.45])])
def test_margins_are_the_papers_for_each_number_of_levels(levels: int, margins: list[float]) -> None:
    embeddings = draw_embeddings(6, 4, seed=1)
    labels = HIERARCHY[:, :levels]
    torch.testing.assert_close(made()(embeddings, labels), made(margins)(embeddings, labels))


def test_the_last_margin_is_the_coarsest_levels() -> None:
    embeddings = torch.randn(2, 4, dtype=torch.float64)
    siblings, strangers = HIERARCHY[:2], HIERARCHY[[0, 3]]
    small, large = made([0.1, 0.2, 0.3]), made([0.1, 0.2, 0.9])
    assert small(embeddings, siblings) == large(embeddings, siblings)  # differ at the finest level alone
    assert small(embeddings, strangers) < large(embeddings, strangers)


def test_a_class_counts_from_its_first_image_on() -> None:
    loss, embeddings = made(), torch.randn(6, 4, dtype=torch.float64)
    before = loss(embeddings[:2], HIERARCHY[:2])
    loss(embeddings, HIERARCHY)
    assert loss.hierarchy.equal(HIERARCHY)
    assert loss(embeddings[:2], HIERARCHY[:2]) > before


def test_labels_of_one_level_are_flat() -> None:
    embeddings = torch.randn(6, 4, dtype=torch.float64)
    assert made()(embeddings, HIERARCHY[:, 0]) == made()(embeddings, HIERARCHY[:, :1])


def test_the_hierarchy_is_in_the_checkpoint() -> None:
    loss, embeddings = made(), torch.randn(2, 4, dtype=torch.float64)
    loss(torch.randn(6, 4, dtype=torch.float64), HIERARCHY)
    resumed = made(seed=1)
    resumed.load_state_dict(loss.state_dict())
    assert resumed(embeddings, HIERARCHY[:2]) == loss(embeddings, HIERARCHY[:2])
    nested = torch.nn.ModuleDict({"head": made(seed=2)})
    nested.load_state_dict(torch.nn.ModuleDict({"head": loss}).state_dict())
    assert nested["head"](embeddings, HIERARCHY[:2]) == loss(embeddings, HIERARCHY[:2])


def test_a_checkpoint_of_other_classes_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        made().load_state_dict(CSLLoss(5, 4).state_dict())


def test_a_large_scale_does_not_overflow() -> None:
    value = made(scale=1e4)(torch.randn(6, 4, dtype=torch.float64), HIERARCHY)
    assert value.isfinite()
    assert value > 1e3


def test_refuses_margins_of_other_levels() -> None:
    with pytest.raises(InputError, match=r"margins=\[0\.25, 0\.45\]: the data set's labels have 3 levels"):
        made([0.25, 0.45])(torch.randn(6, 4, dtype=torch.float64), HIERARCHY)


def test_a_loss_that_began_in_inference_mode_can_be_trained() -> None:
    loss, embeddings, labels = CSLLoss(4, 3), torch.randn(4, 3, requires_grad=True), torch.arange(4)
    with torch.inference_mode():
        value = loss(embeddings, labels)
    trained = loss(embeddings, labels)
    trained.backward()
    assert trained.item() == value.item()
