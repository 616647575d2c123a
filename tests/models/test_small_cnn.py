from pathlib import Path

import pytest
import torch
from configurations import compose
from hydra.utils import instantiate
from torch import Tensor, nn

from dml.models.embedding import EmbeddingModel
from dml.models.small_cnn import small_cnn
from dml.runtime.errors import InputError


def built(size: int, *overrides: str) -> EmbeddingModel:
    config = compose("model=small_cnn", f"transform.size={size}", *overrides)
    torch.manual_seed(0)
    model = instantiate(config.model)
    assert isinstance(model, EmbeddingModel)
    return model


def digits(size: int, rows: int = 5) -> Tensor:
    return torch.randint(0, 256, (rows, 3, size, size), generator=torch.Generator().manual_seed(1)).float()


@pytest.mark.parametrize(("size", "side"), [(8, 2), (28, 7)])
def test_two_convolutions_and_one_layer_give_the_plane(size: int, side: int) -> None:
    model = built(size)
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == [(32, 3, 5, 5), (64, 32, 5, 5), (2, 64 * side * side)]
    embeddings = model(digits(size))
    assert {name: tuple(rows.shape) for name, rows in embeddings.items()} == {"H": (5, 2)}
    assert not torch.allclose(embeddings["H"].norm(dim=1), torch.ones(5))  # in the plane, not on the circle
    assert model.raw_features(digits(size)).shape == (5, 64 * side * side)


def test_it_computes_what_its_parts_say() -> None:
    """In float64, convolutions as sums over shifted images."""
    model = built(8).double()
    images = digits(8).double()
    first, second = model.backbone.network.conv1, model.backbone.network.conv2

    def convolved(x: Tensor, layer: nn.Conv2d) -> Tensor:
        padded = nn.functional.pad(x, (2, 2, 2, 2))
        height, width = x.shape[2:]
        total = layer.bias[:, None, None].expand(len(x), -1, height, width).clone()
        for i in range(5):
            for j in range(5):
                shifted = padded[:, :, i : i + height, j : j + width]
                total += torch.einsum("bchw,oc->bohw", shifted, layer.weight[:, :, i, j])
        return total

    def pooled(x: Tensor) -> Tensor:
        cells = x.clamp(min=0)
        return torch.stack([cells[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(dim=0)

    maps = pooled(convolved(pooled(convolved(images / 127.5 - 1, first)), second))
    layer = model.heads["H"].embedding
    expected = torch.einsum("bf,df->bd", maps.reshape(5, -1), layer.weight) + layer.bias
    torch.testing.assert_close(model(images)["H"], expected.float())


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    saved = small_cnn()
    torch.save(saved.network.state_dict(), tmp_path / "weights.pth")
    loaded = small_cnn(weights=str(tmp_path / "weights.pth"))
    torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"model\.backbone\.weights=download: no such file"):
        small_cnn(weights="download")
