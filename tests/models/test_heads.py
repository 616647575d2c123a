import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.heads import (
    AuxiliaryHead,
    ClassTokenHead,
    GeMHead,
    NormalizedPoolHead,
    PooledHead,
    PoolHead,
    TokenMeanHead,
)
from dml.runtime.errors import InputError


def maps(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def ceil_pool(tapped: Tensor) -> Tensor:
    """Means of 5 x 5 windows at every third place, the last one cut off by the border."""
    height, width = tapped.shape[-2:]

    def starts(side: int) -> range:
        return range(0, side - 5 + 3, 3)

    rows = [
        torch.stack([tapped[..., y : y + 5, x : x + 5].mean(dim=(-2, -1)) for x in starts(width)], dim=-1)
        for y in starts(height)
    ]
    return torch.stack(rows, dim=-2)


def test_pool_head_is_a_mean_and_a_matrix() -> None:
    head = PoolHead((7, 3, 4), 5)
    tapped = maps(2, 7, 3, 4)
    assert [(name, tuple(p.shape)) for name, p in head.named_parameters()] == [("embedding.weight", (5, 7))]
    expected = torch.stack([tapped[:, c].flatten(1).mean(dim=1) for c in range(7)], dim=1) @ head.embedding.weight.T
    torch.testing.assert_close(head(tapped), expected)


def randomized(head: AuxiliaryHead) -> AuxiliaryHead:
    for norm in (head.reduction_norm, head.hidden_norm):
        nn.init.uniform_(norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    return head.eval()


def rest_of_the_head(head: AuxiliaryHead, pooled: Tensor) -> Tensor:
    """1x1 convolution to 128 + BN + ReLU, linear to 1024 + BN + ReLU, linear."""

    def norm(values: Tensor, layer: nn.Module) -> Tensor:
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        return (values - layer.running_mean) / (layer.running_var + layer.eps).sqrt() * layer.weight + layer.bias

    cells = pooled.permute(0, 2, 3, 1) @ head.reduction.weight[:, :, 0, 0].T
    cells = norm(cells, head.reduction_norm).clamp(min=0).permute(0, 3, 1, 2)
    hidden = norm(cells.flatten(1) @ head.hidden.weight.T, head.hidden_norm).clamp(min=0)
    return hidden @ head.embedding.weight.T + head.embedding.bias


def test_normalized_pool_head_is_happiers() -> None:
    head, tapped = NormalizedPoolHead((7, 3, 4), 5), maps(2, 7, 3, 4)
    for image, embedding in zip(tapped, head(tapped), strict=True):
        pooled = image.reshape(7, -1).sum(dim=1) / 12
        centered = pooled - pooled.sum() / 7
        normalized = centered / ((centered**2).sum() / 7 + 1e-5).sqrt()
        torch.testing.assert_close(embedding, head.embedding.weight @ normalized + head.embedding.bias)
    assert {name for name, _ in head.named_parameters()} == {"embedding.weight", "embedding.bias"}


def test_a_pool_head_can_drop_features_in_training() -> None:
    torch.manual_seed(0)
    head, tapped = PoolHead((400, 2, 2), 3, dropout=0.25), torch.rand(1, 400, 2, 2)
    with torch.no_grad():
        head.embedding.weight.fill_(1.0)
    kept = head(tapped).sum() / 3
    whole = tapped.mean(dim=(2, 3)).sum()
    assert 0.9 * whole < kept < 1.1 * whole  # what is left is scaled up by 1 / 0.75
    assert not torch.isclose(kept, whole)
    torch.testing.assert_close(head.eval()(tapped)[0, 0], whole)


@pytest.mark.parametrize("size", [(5, 5), (6, 6), (7, 7), (8, 8), (9, 5), (14, 14), (11, 16)])
def test_auxiliary_head_equals_the_description(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    head, tapped = randomized(AuxiliaryHead((6, *size), 10)), maps(3, 6, *size)
    embeddings = head(tapped)
    assert embeddings.shape == (3, 10)
    torch.testing.assert_close(embeddings, rest_of_the_head(head, ceil_pool(tapped)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", [1, 2, 4])
@pytest.mark.parametrize("side", [2, 4, 8])
def test_auxiliary_head_on_a_grid(grid: int, side: int) -> None:
    torch.manual_seed(0)
    head, tapped = randomized(AuxiliaryHead((6, side, side), 10, grid=grid)), maps(3, 6, side, side)
    pooled = F.adaptive_avg_pool2d(tapped, grid)
    if side >= grid:  # whole blocks
        assert torch.allclose(pooled[..., 0, 0], tapped[..., : side // grid, : side // grid].mean(dim=(2, 3)))
    torch.testing.assert_close(head(tapped), rest_of_the_head(head, pooled), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(4, 4), (4, 14), (14, 4), (1, 1)])
def test_maps_too_small_for_the_pool(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=f"pools 5x5 but the tapped map is {size[0]}x{size[1]}: use larger images"):
        AuxiliaryHead((6, *size), 10)
    AuxiliaryHead((6, *size), 10, grid=2).eval()(maps(1, 6, *size))


# transformers


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def apply_layer(layer: nn.Linear, vector: list[float]) -> Tensor:
    """A product of a matrix and a vector, plus a bias, number by number."""
    rows = layer.weight.tolist()
    values = [sum(w * x for w, x in zip(row, vector, strict=True)) for row in rows]
    return torch.tensor([v + b for v, b in zip(values, layer.bias.tolist(), strict=True)], dtype=torch.float64)


def randomized_layer(head: nn.Module) -> nn.Linear:
    layer = head.double().embedding
    assert isinstance(layer, nn.Linear)
    nn.init.uniform_(layer.bias, -1, 1)
    return layer


def test_class_token_head_takes_the_first_token() -> None:
    head = ClassTokenHead((7, 1 + 6, 1), 5)
    layer, batch = randomized_layer(head), tokens(3, 1 + 6, 7)
    for image, embedding in zip(batch, head(batch), strict=True):
        torch.testing.assert_close(embedding, apply_layer(layer, image[0].tolist()))
    other_patches = torch.cat([batch[:, :1], tokens(3, 9, 7)], dim=1)
    torch.testing.assert_close(head(other_patches), head(batch))


def test_token_mean_head_joins_the_class_token_and_the_mean_patch() -> None:
    head = TokenMeanHead((7, 1 + 6, 1), 5)
    layer, batch = randomized_layer(head), tokens(3, 1 + 6, 7)
    for image, embedding in zip(batch, head(batch), strict=True):
        mean = [sum(image[i, c].item() for i in range(1, 7)) / 6 for c in range(7)]
        torch.testing.assert_close(embedding, apply_layer(layer, [*image[0].tolist(), *mean]))


@pytest.mark.parametrize("exponent", [1.0, 3.0, 4.5])
def test_gem_head_is_the_mean_of_powers(exponent: float) -> None:
    head = GeMHead((7, 2, 3), 5, exponent=exponent)
    layer, batch = randomized_layer(head), tokens(3, 7, 2, 3)
    assert (batch < 0).any()
    for image, embedding in zip(batch, head(batch), strict=True):
        pooled = []
        for channel in image.flatten(1).tolist():
            powers = [max(value, 1e-6) ** exponent for value in channel]
            pooled.append((sum(powers) / len(powers)) ** (1 / exponent))
        torch.testing.assert_close(embedding, apply_layer(layer, pooled))


@pytest.mark.parametrize("exponent", [8.0, 40.0, 1000.0])
def test_gem_head_of_a_large_exponent_is_finite(exponent: float) -> None:
    head, batch = GeMHead((3, 2, 2), 3, exponent=exponent), 30 * maps(2, 3, 2, 2)
    batch[0, 0] = 0  # a channel that no cell of an image has
    layer = randomized_layer(head)
    embeddings = head.float()(batch.requires_grad_())
    embeddings.sum().backward()
    assert all(tensor is not None and tensor.isfinite().all() for tensor in (batch.grad, head.exponent.grad))
    cells = batch.detach().double().clamp(min=1e-6).flatten(2)
    largest = cells.amax(dim=2, keepdim=True)
    pooled = largest[:, :, 0] * ((cells / largest) ** exponent).mean(dim=2) ** (1 / exponent)
    expected = torch.stack([apply_layer(layer, row.tolist()) for row in pooled]).float()
    torch.testing.assert_close(embeddings, expected, rtol=1e-5, atol=1e-4)


def test_gem_head_trains_its_exponent() -> None:
    head, batch = GeMHead((7, 2, 3), 5).double(), tokens(3, 7, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda exponent: torch.func.functional_call(head, {"exponent": exponent}, batch),
        head.exponent.detach().clone().requires_grad_(),
    )
    head(-batch.abs()).sum().backward()
    assert batch.grad is not None
    assert batch.grad.isfinite().all()
    assert head.exponent.grad is not None
    assert head.exponent.grad.isfinite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gem_head_pools_half_precision_without_underflow(dtype: torch.dtype) -> None:
    head = GeMHead((2, 2, 2), 2)
    with torch.no_grad():
        head.embedding.weight.copy_(torch.eye(2))
    small = torch.full((1, 2, 2, 2), 1e-3, dtype=dtype)
    torch.testing.assert_close(head(small), torch.full((1, 2), float(small[0, 0, 0, 0])))


@pytest.mark.parametrize("exponent", [0, -1, float("nan")])
def test_gem_head_refuses_an_exponent(exponent: float) -> None:
    with pytest.raises(InputError, match=f"exponent={exponent}: must be a finite number above 0"):
        GeMHead((7, 2, 3), 5, exponent=exponent)


def test_pooled_head_is_a_matrix() -> None:
    head = PooledHead((7, 1, 1), 5)
    layer, batch = randomized_layer(head), tokens(3, 7, 1, 1)
    for image, embedding in zip(batch, head(batch), strict=True):
        torch.testing.assert_close(embedding, apply_layer(layer, image.flatten().tolist()))
    with pytest.raises(InputError, match="PooledHead takes pooled features, but the tapped map is 2x1: tap pooled"):
        PooledHead((7, 2, 1), 5)


@pytest.mark.parametrize("embed_dim", [4, 8, 12])
@pytest.mark.parametrize(("kind", "inputs"), [(ClassTokenHead, 8), (TokenMeanHead, 16), (GeMHead, 8), (PooledHead, 8)])
def test_layers_begin_orthogonal(kind: type[nn.Module], inputs: int, embed_dim: int) -> None:
    layer = kind((8, 1, 1), embed_dim).embedding
    assert isinstance(layer, nn.Linear)
    assert layer.weight.shape == (embed_dim, inputs)
    gram = layer.weight @ layer.weight.T if embed_dim <= inputs else layer.weight.T @ layer.weight
    torch.testing.assert_close(gram, torch.eye(min(embed_dim, inputs)))
    assert not layer.bias.any()
