import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.heads import AuxiliaryHead, NormalizedPoolHead, PoolHead
from dml.ops.errors import InputError


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
        centred = pooled - pooled.sum() / 7
        normalized = centred / ((centred**2).sum() / 7 + 1e-5).sqrt()
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
    with pytest.raises(InputError, match="dropout=1: must be 0 or more, below 1"):
        PoolHead((4, 2, 2), 3, dropout=1)


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


def test_only_the_last_layer_has_a_bias() -> None:
    """Batch normalisation cancels the others'."""
    head = AuxiliaryHead((6, 7, 7), 10)
    layers = {"reduction": head.reduction, "hidden": head.hidden, "embedding": head.embedding}
    assert {name: layer.bias is not None for name, layer in layers.items()} == {
        "reduction": False,
        "hidden": False,
        "embedding": True,
    }


@pytest.mark.parametrize("size", [(4, 4), (4, 14), (14, 4), (1, 1)])
def test_maps_too_small_for_the_pool(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=f"pools 5x5 but the tapped map is {size[0]}x{size[1]}: use larger images"):
        AuxiliaryHead((6, *size), 10)
    AuxiliaryHead((6, *size), 10, grid=2).eval()(maps(1, 6, *size))
