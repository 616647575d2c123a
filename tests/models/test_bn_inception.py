import warnings
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from dml.models.bn_inception import BNInception

pytestmark = pytest.mark.networks

CLASSES = 10
BLOCKS = ["3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"]
TAPS = {
    "inception_3c_output": (576, 14, 14),
    "inception_4e_output": (1056, 7, 7),
    "inception_5b_output": (1024, 7, 7),
}


@pytest.fixture(scope="module")
def bninception() -> Callable[..., nn.Module]:
    """The network of the usual weights."""
    with warnings.catch_warnings():
        # an unrelated file of the package is compiled with `is` before a literal
        warnings.simplefilter("ignore", SyntaxWarning)
        from pretrainedmodels import bninception
    return bninception  # type: ignore[no-any-return]


def pixels(*shape: int) -> Tensor:
    """Images as the usual weights take them: 0-255 less a mean."""
    return 255 * torch.rand(*shape, generator=torch.Generator().manual_seed(1)) - 117


def tapped(network: nn.Module, images: Tensor, names: list[str]) -> list[Tensor]:
    maps: list[Tensor] = []
    hooks = [
        network.get_submodule(name).register_forward_hook(lambda module, inputs, output: maps.append(output))
        for name in names
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return maps


def random_state(network: nn.Module) -> dict[str, Tensor]:
    """Weights that keep the maps' scale; nothing of batch normalization is as it is initialized."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for key, value in network.state_dict().items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(3)
        elif value.ndim == 1:
            low = 0.5 if key.endswith(("running_var", "bn.weight")) else -0.5
            state[key] = torch.rand(value.shape, generator=generator) + low
        else:
            state[key] = torch.randn(value.shape, generator=generator) * (2 / value[0].numel()) ** 0.5
    return state


@pytest.fixture(scope="module")
def reference(bninception: Callable[..., nn.Module]) -> nn.Module:
    network = bninception(num_classes=CLASSES, pretrained=None)
    network.load_state_dict(random_state(network))
    return network.eval()


@pytest.fixture(scope="module")
def network(reference: nn.Module) -> BNInception:
    network = BNInception(CLASSES)
    network.load_state_dict(reference.state_dict(), strict=True)
    return network.eval()


def test_state_dict_is_that_of_the_usual_weights(bninception: Callable[..., nn.Module]) -> None:
    with torch.device("meta"):
        ours, usual = BNInception().state_dict(), bninception(pretrained=None).state_dict()
    assert [(key, value.shape) for key, value in ours.items()] == [(k, v.shape) for k, v in usual.items()]


def test_loads_files_that_count_no_batches(reference: nn.Module) -> None:
    old = {key: value for key, value in reference.state_dict().items() if "num_batches" not in key}
    BNInception(CLASSES).load_state_dict(old, strict=True)


@torch.inference_mode()
@pytest.mark.parametrize("size", [224, 227])
def test_logits_equal_the_reference(network: BNInception, reference: nn.Module, size: int) -> None:
    images = pixels(2, 3, size, size)
    expected = reference(images)
    assert expected.std() > 0.1  # the random weights don't make it constant
    torch.testing.assert_close(network(images), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("size", [32, 64, 96, 224])
def test_maps_equal_the_reference(network: BNInception, reference: nn.Module, size: int) -> None:
    images = pixels(2, 3, size, size)
    (ours,) = tapped(network, images, ["inception_5b_output"])
    torch.testing.assert_close(ours, reference.features(images), rtol=0, atol=0)


@pytest.mark.parametrize("size", [64, 96])
def test_training_maps_and_statistics_equal_the_reference(
    network: BNInception, reference: nn.Module, size: int
) -> None:
    ours, usual = deepcopy(network).train(), deepcopy(reference).train()
    images = pixels(3, 3, size, size)
    (maps,) = tapped(ours, images, ["inception_5b_output"])
    torch.testing.assert_close(maps, usual.features(images), rtol=0, atol=0)
    torch.testing.assert_close(ours.state_dict(), usual.state_dict(), rtol=0, atol=0)


def test_training_gradients_equal_the_reference(network: BNInception, reference: nn.Module) -> None:
    # float64: 70 normalized layers amplify the last bits in which the two last pools may differ
    ours, usual = deepcopy(network).double().train(), deepcopy(reference).double().train()
    images = pixels(2, 3, 224, 224).double()
    logits, expected = ours(images), usual(images)
    torch.testing.assert_close(logits, expected)
    logits.square().mean().backward()
    expected.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    torch.testing.assert_close(gradients, {name: p.grad for name, p in usual.named_parameters()})


@torch.inference_mode()
def test_taps(network: BNInception) -> None:
    maps = tapped(network, pixels(2, 3, 224, 224), [*TAPS])
    assert [tuple(output.shape[1:]) for output in maps] == [*TAPS.values()]


@torch.inference_mode()
def test_every_block_can_be_tapped(network: BNInception) -> None:
    names = [f"inception_{block}_output" for block in BLOCKS]
    assert len(tapped(network, pixels(1, 3, 32, 32), names)) == len(names)


@torch.inference_mode()
def test_without_classes_gives_pooled_features(network: BNInception) -> None:
    headless = BNInception(num_classes=0).eval()
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("last_linear.")}
    headless.load_state_dict(state, strict=True)
    images = pixels(2, 3, 96, 96)
    features = headless(images)
    assert features.shape == (2, 1024)
    torch.testing.assert_close(network.last_linear(features), network(images))


@torch.inference_mode()
@pytest.mark.parametrize(("height", "width"), [(32, 47), (33, 40), (72, 112), (240, 80)])
def test_takes_any_size(network: BNInception, height: int, width: int) -> None:
    """Among them those whose 3b or 4d maps have odd sides, where the reference can't concatenate."""
    assert network(pixels(1, 3, height, width)).shape == (1, CLASSES)


@torch.inference_mode()
@pytest.mark.parametrize(("height", "width"), [(7, 7), (8, 8), (1, 5), (6, 9)])
def test_halving_pool_is_the_maximum_of_windows_that_start_at_even_places(
    network: BNInception, height: int, width: int
) -> None:
    maps = pixels(1, 1, height, width).relu()
    expected = [
        [maps[0, 0, row : row + 3, column : column + 3].max() for column in range(0, width, 2)]
        for row in range(0, height, 2)
    ]
    assert network.get_submodule("inception_3c_pool")(maps)[0, 0].tolist() == torch.tensor(expected).tolist()


def channels_last(network: BNInception, images: Tensor) -> Tensor:
    return network.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))


def autocast(network: BNInception, images: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return network(images).float()


@torch.inference_mode()
@pytest.mark.parametrize(("how", "tolerance"), [(channels_last, 1e-4), (autocast, 5e-2)])
def test_memory_format_and_autocast(
    network: BNInception, how: Callable[[BNInception, Tensor], Tensor], tolerance: float
) -> None:
    images = pixels(2, 3, 96, 96)
    expected = network(images)
    scale = float(expected.abs().max())
    torch.testing.assert_close(how(deepcopy(network), images), expected, rtol=0, atol=tolerance * scale)
