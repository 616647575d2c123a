"""Heads that begin as the principal components of what they embed, compared with numpy's singular vectors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.models.heads import AuxiliaryHead, ClassTokenHead, NormalizedPoolHead, PoolHead
from dml.runtime.errors import InputError
from dml.training.callbacks.initial_values import (
    begin_at_principal_components,
    begin_at_vectors,
    choose_whitening,
    last_layers,
)


def draw(images: int, channels: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, channels, generator=generator) * torch.linspace(3, 0.1, channels) + 0.5


@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_the_best_of_its_size(bias: bool) -> None:
    inputs, layer = draw(50, 8), nn.Linear(8, 3, bias=bias)
    norm = layer.weight.norm().item()
    begin_at_principal_components(layer, inputs)
    unit = F.normalize(inputs.double(), dim=1).numpy()
    directions = np.linalg.svd(unit, full_matrices=False)[2][:3]
    weight = layer.weight.detach().double().numpy()
    cosines = weight @ directions.T / np.linalg.norm(weight, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(cosines), np.eye(3), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(weight, axis=1), norm / np.sqrt(3), rtol=1e-5)
    assert not bias or not layer.bias.any()


def test_all_components_leave_the_cosines_as_they_are() -> None:
    for count, size in ((40, 9), (2, 4)):
        inputs, layer = draw(count, 6), nn.Linear(6, size, bias=False)
        begin_at_principal_components(layer, inputs)
        embedded, unit = F.normalize(layer(inputs), dim=1), F.normalize(inputs, dim=1)
        torch.testing.assert_close(embedded @ embedded.T, unit @ unit.T)
        assert not layer.weight[6:].any()


@pytest.mark.parametrize("whitening", [0.5, 1.0])
def test_components_are_divided_by_a_power_of_their_root_mean_square(whitening: float) -> None:
    inputs, layer = draw(50, 8), nn.Linear(8, 3, bias=False)
    begin_at_principal_components(layer, inputs, whitening)
    unit = F.normalize(inputs, dim=1)
    singular = torch.linalg.svdvals(unit)[:3]
    sizes = (unit @ layer.weight.detach().T).square().sum(dim=0).sqrt()
    torch.testing.assert_close(sizes / sizes[0], (singular / singular[0]) ** (1 - whitening), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_begins_at_what_predicts_given_vectors(bias: bool) -> None:
    inputs, layer = draw(200, 8), nn.Linear(8, 3, bias=bias)
    norm = layer.weight.norm()
    vectors = F.normalize(inputs @ torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), dim=1)
    expected = vectors.clone()
    vectors[::10] = torch.nan  # images that the other model couldn't read
    begin_at_vectors(layer, inputs, vectors)
    assert F.cosine_similarity(layer(inputs), expected, dim=1).mean() > 0.95
    torch.testing.assert_close(layer.weight.norm(), norm)
    assert not bias or not layer.bias.any()


@pytest.mark.parametrize(
    ("others", "scale", "share"),
    [(60, 0.1, 0.25), (2, 5.0, 0.5)],  # many small directions that say nothing, and two large ones
)
def test_the_share_that_finds_more_in_other_classes_is_chosen(others: int, scale: float, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = np.repeat(np.arange(16), 6)
    telling = torch.randn(16, 8, generator=generator)[labels] + 0.3 * torch.randn(96, 8, generator=generator)
    inputs = torch.cat([telling, scale * torch.randn(96, others, generator=generator)], dim=1)
    layer = nn.Linear(inputs.shape[1], 32)
    weight = layer.weight.clone()
    assert choose_whitening(layer, inputs, labels) == share
    assert torch.equal(layer.weight, weight)
    few = labels < 7
    assert choose_whitening(layer, inputs[few], labels[few]) == 0.5


def test_components_of_rounding_alone_are_not_whitened() -> None:
    inputs, layer = draw(50, 2) @ draw(2, 8), nn.Linear(8, 4, bias=False)
    begin_at_principal_components(layer, inputs, 1.0)
    assert layer.weight.norm(dim=1).max() < 10 * layer.weight.norm(dim=1).min()
    torch.testing.assert_close(layer(inputs)[:, 2:], torch.zeros(50, 2), rtol=0, atol=1e-5)


def test_all_outputs_of_few_images_see_other_images() -> None:
    inputs, layer = draw(2, 6), nn.Linear(6, 4, bias=False)
    begin_at_principal_components(layer, inputs, 0.5)
    torch.testing.assert_close(layer(inputs)[:, 2:], torch.zeros(2, 2), rtol=0, atol=1e-5)
    assert (layer(draw(5, 6)[2:]).abs().mean(dim=0) > 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_begin_as_those_of_32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs, layer = torch.randn(3, 8), nn.Linear(8, 6)
    half = nn.Linear(8, 6).to(dtype)
    half.load_state_dict(layer.state_dict())
    for one in (layer, half):
        begin_at_principal_components(one, inputs)
    torch.testing.assert_close(half.weight.float(), layer.weight, atol=0.01, rtol=0.01)


def test_inputs_that_are_all_0_are_refused() -> None:
    with pytest.raises(InputError, match="gives 0 for all images"):
        begin_at_principal_components(nn.Linear(3, 2), torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"^heads\.initial: the network gives 0 for all images"):
        begin_at_vectors(nn.Linear(3, 2), torch.zeros(4, 3), torch.ones(4, 2))


def test_heads_that_end_in_a_linear_layer_are_found() -> None:
    shape = (16, 5, 1)
    heads = nn.ModuleDict(
        {"H": PoolHead(shape, 8), "N": NormalizedPoolHead(shape, 8), "C": ClassTokenHead(shape, 8), "own": nn.Flatten()}
    )
    assert [*last_layers(heads)] == ["H", "N", "C"]
    assert [*last_layers(nn.ModuleDict({"L": AuxiliaryHead((16, 14, 14), 8)}))] in (["L"], [])
