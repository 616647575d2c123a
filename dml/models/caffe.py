"""The reader of BN-Inception's weights in a ``.caffemodel`` file, which is a message in protobuf's wire format."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dml.ops.errors import InputError

LAYER_FIELDS = {100: (1, 7), 2: (4, 6)}
"""Numbers of a layer's fields for its name and its arrays, by that of the layers, which is another in old files."""
DATA_FIELDS = {5: "<f4", 8: "<f8"}
VARINT = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


def read_caffemodel(path: Path) -> dict[str, Tensor]:
    """Read the weights of BN-Inception, with the keys of `BNInception`.

    Caffe's convolutions may lack a bias, which is then 0. Batch normalisation is two of its layers: ``NAME/bn`` has the
    running mean, the running variance and a divisor of both, and ``NAME/bn/sc`` the scale and the shift.

    Raises:
        InputError: if the file is no .caffemodel, or is damaged.
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
