from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SHORT_RUN, Refused
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dml.losses.rll import RankedListLoss
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import AuxiliaryHead, PoolHead
from dml.runtime.errors import InputError
from dml.training.gradient_cache import check_chunk_size, embed_in_chunks


class Network(nn.Module):
    """Two heads over a shared layer, with dropout, a parameter that nothing reaches and one that doesn't learn."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Conv2d(3, 5, 3)
        self.dropout = nn.Dropout(dropout)
        self.H = nn.Linear(5, 4)
        self.L = nn.Linear(5, 3)
        self.unreached = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.ones(()), requires_grad=False)
        self.calls: list[tuple[int, bool]] = []

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        self.calls.append((len(images), torch.is_grad_enabled()))
        pixels = images.to(self.frozen.dtype) / 255 - 0.5
        hidden = self.dropout(self.shared(pixels).mean(dim=(2, 3)) * self.frozen)
        return {"H": self.H(hidden).float(), "L": self.L(hidden).float()}


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, 6, 6), dtype=torch.uint8, generator=generator)


def loss_of(embeddings: dict[str, Tensor]) -> Tensor:
    labels = torch.arange(len(embeddings["H"])) // 2
    total: Tensor = RankedListLoss()(embeddings["H"], labels) + 2 * RankedListLoss()(embeddings["L"], labels)
    return total


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def of_the_whole_batch(model: nn.Module, batch: Tensor) -> None:
    loss_of(model(batch)).backward()


def by_the_paper(model: nn.Module, batch: Tensor, size: int, around: Callable[[], Any]) -> dict[str, Tensor]:
    """Gao et al. (2021), Section 3: four steps, each written out -> the embeddings."""
    state = torch.get_rng_state()
    with torch.no_grad():
        parts = []
        for chunk in batch.split(size):
            with around():
                parts.append(model(chunk))
    leaves = {head: torch.cat([part[head] for part in parts]).requires_grad_() for head in ("H", "L")}
    loss_of(leaves).backward()
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    for number, chunk in enumerate(batch.split(size)):
        with around():
            part = model(chunk)
        rows = slice(number * size, (number + 1) * size)
        torch.autograd.backward([part["H"], part["L"]], [leaves["H"].grad[rows], leaves["L"].grad[rows]])
    torch.set_rng_state(after)
    return leaves


@examples(20)
@given(count=st.integers(2, 9), size=st.integers(1, 10))
def test_the_gradients_are_those_of_the_whole_batch(count: int, size: int) -> None:
    cached, plain = Network().double(), Network().double()
    loss_of(embed_in_chunks(cached, images(count), size)).backward()
    of_the_whole_batch(plain, images(count))
    for name, expected in gradients(plain).items():
        found = gradients(cached)[name]
        if expected is None:
            assert found is None, name
        else:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("autocast", [False, True])
def test_dropout_and_autocast_are_those_of_the_first_pass(autocast: bool) -> None:
    def around() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)

    cached, expected = Network(dropout=0.5), Network(dropout=0.5)
    torch.manual_seed(7)
    with around():
        embeddings = embed_in_chunks(cached, images(10), 4)
        loss = loss_of(embeddings)
    loss.backward()
    drawn = torch.rand(3)
    torch.manual_seed(7)
    leaves = by_the_paper(expected, images(10), 4, around)
    for head, rows in leaves.items():
        assert torch.equal(embeddings[head], rows), head
    for name, gradient in gradients(expected).items():
        found = gradients(cached)[name]
        assert (found is None and gradient is None) or torch.equal(found, gradient), name
    assert torch.equal(drawn, torch.rand(3))


def test_a_graph_is_held_of_one_chunk_at_a_time() -> None:
    model = Network()
    loss = loss_of(embed_in_chunks(model, images(10), 4))
    assert model.calls == [(4, False), (4, False), (2, False)]
    loss.backward()
    assert model.calls[3:] == [(4, True), (4, True), (2, True)]
    for size in (6, 7):
        whole = Network()
        loss_of(embed_in_chunks(whole, images(6), size)).backward()
        assert whole.calls == [(6, True)]


def test_a_parameter_gets_its_gradient_once_and_adds_it_to_what_it_has() -> None:
    model, expected = Network().double(), Network().double()
    counts = dict.fromkeys(dict(model.named_parameters()), 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: counts.update({name: counts[name] + 1}))
    for _ in range(2):
        loss_of(embed_in_chunks(model, images(8), 3)).backward()
        of_the_whole_batch(expected, images(8))
    assert {name: count for name, count in counts.items() if not name.startswith(("unreached", "frozen"))} == {
        f"{layer}.{kind}": 2 for layer in ("shared", "H", "L") for kind in ("weight", "bias")
    }
    torch.testing.assert_close(model.shared.weight.grad, expected.shared.weight.grad, rtol=1e-9, atol=1e-14)


def test_a_parameter_used_twice_gets_both_gradients() -> None:
    class Twice(Network):
        def forward(self, images: Tensor) -> dict[str, Tensor]:
            embeddings = super().forward(images)
            return {"H": embeddings["H"] + self.H.bias.float(), "L": embeddings["L"]}

    cached, plain = Twice().double(), Twice().double()
    loss_of(embed_in_chunks(cached, images(7), 2)).backward()
    of_the_whole_batch(plain, images(7))
    torch.testing.assert_close(cached.H.bias.grad, plain.H.bias.grad, rtol=1e-9, atol=1e-14)


def model(*layers: nn.Module, head: type[nn.Module] = PoolHead, freeze: str | None = None) -> EmbeddingModel:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone = Backbone(network, mean=(0.5,) * 3, std=(0.5,) * 3, freeze_batchnorm=freeze)
    tap = str(len(layers) + 1)
    return EmbeddingModel(backbone, taps={"H": tap}, head={"H": head}, heads=["H"], embed_dim=4, image_size=8)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (lambda: model(nn.BatchNorm2d(4)), r"=4: backbone\.network\.1 \(BatchNorm2d\) .*freeze_batchnorm=all"),
        (lambda: model(nn.BatchNorm2d(4, track_running_stats=False)), r"\(BatchNorm2d\)"),
        (lambda: model(nn.InstanceNorm2d(4, track_running_stats=True)), r"\(InstanceNorm2d\)"),
        (lambda: model(head=AuxiliaryHead), r"heads\.H\.reduction_norm \(BatchNorm2d\) .* PoolHead in model\.head"),
    ],
)
def test_what_mixes_the_images_of_a_batch_is_refused(built: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check_chunk_size(built(), 4)


def test_other_models_are_not() -> None:
    for frozen in ("all", "statistics"):
        check_chunk_size(model(nn.BatchNorm2d(4), freeze=frozen), 4)
    check_chunk_size(model(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)), 4)
    check_chunk_size(model(nn.BatchNorm2d(4)), None)


def test_the_command_line_says_what_is_in_the_way(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [*SHORT_RUN, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}", "training.gradient_cache=4"]
    line = refused(*arguments, "model.backbone.freeze_batchnorm=null")
    assert "training.gradient_cache=4: backbone.network.bn1 (BatchNormAct2d) normalizes" in line
