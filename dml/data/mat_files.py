"""Variables of .mat files, which are read only if the file claims no more memory than it should take."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from dml.data.image_files.limits import LIST_OPTION, current_max_list_bytes, name_list_in_errors, read_list_bytes
from dml.ops.errors import InputError
from dml.ops.filesystem.regular_files import RefusedFileError, check_unpacked

HEADER_BYTES = 128
"""Size of the header of a file of version 5; its last two bytes tell the byte order."""
MATRIX, COMPRESSED = 14, 15
"""Types of elements."""
NESTED_CLASSES = (1, 2, 3)
"""Classes of matrices that contain other matrices: cells, structures, objects."""
SPARSE_CLASS = 5
"""The class of matrices that store only some of their elements."""
CLASSES_WITH_DIMENSIONS = range(1, 16)
MAX_DEPTH = 16
"""Largest depth of matrices within matrices."""


def read_variable(path: Path, name: str) -> Any:
    """Read a variable of a .mat file as a one-dimensional array.

    Raises:
        InputError: if the file can't be read, has no such variable, or takes more than ``data.max_list_bytes``.
    """
    with name_list_in_errors(path):
        content = read_list_bytes(path)
        _check_claimed_sizes(content)
        try:
            variables = loadmat(BytesIO(content), variable_names=[name], squeeze_me=True)
        except MemoryError:
            raise
        except Exception as error:  # scipy doesn't document which exceptions a broken file raises
            raise InputError(f"{path}: cannot be read as a .mat file ({type(error).__name__})") from error
    if name not in variables:
        raise InputError(f"{path}: no variable {name} in it")
    return np.atleast_1d(variables[name])


def _check_claimed_sizes(content: bytes) -> None:
    """Make sure that the matrices of a file of version 5 hold as many elements as their headers claim.

    scipy allocates memory for all cells of a matrix before it reads the first: a file of 64 bytes that claimed 300
    million cells took 2.3 GB. What can't be parsed here is left for scipy to refuse.

    Raises:
        RefusedFileError: if a matrix holds fewer elements, or the unpacked file exceeds ``data.max_list_bytes``.
    """
    byte_order = {b"IM": "<", b"MI": ">"}.get(content[HEADER_BYTES - 2 : HEADER_BYTES])
    if byte_order is None:
        return
    total_unpacked = 0
    for kind, data in _iterate_elements(content[HEADER_BYTES:], byte_order):
        if kind != COMPRESSED:
            _check_element(kind, data, byte_order)
            continue
        unpacked = _unpack(data, current_max_list_bytes() - total_unpacked)
        total_unpacked += len(unpacked)
        check_unpacked(total_unpacked, current_max_list_bytes(), LIST_OPTION)
        for inner_kind, inner_data in _iterate_elements(unpacked, byte_order):
            _check_element(inner_kind, inner_data, byte_order)


def _unpack(packed: bytes, max_bytes: int) -> bytes:
    """Unpack a compressed element; of an element of more than ``max_bytes`` bytes return one byte more than that."""
    try:
        return zlib.decompressobj().decompress(packed, max_bytes + 1)
    except zlib.error:
        return b""


def _iterate_elements(content: bytes, byte_order: str) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the data of each element, up to the first that is cut off."""
    start = 0
    while start + 8 <= len(content):
        kind, size = struct.unpack_from(f"{byte_order}II", content, start)
        data_start = start + 8
        if kind >> 16:  # a small element stores its size in the upper half of the type, and up to 4 bytes of data next
            kind, size, data_start = kind & 0xFFFF, kind >> 16, start + 4
        if data_start + size > len(content):
            return
        yield kind, content[data_start : data_start + size]
        start = data_start + size if kind == COMPRESSED else -(-(data_start + size) // 8) * 8


def _check_element(kind: int, content: bytes, byte_order: str, depth: int = 0) -> None:
    """Make sure that a matrix, and the matrices in it, hold as many elements as their headers claim."""
    if kind != MATRIX:
        return
    parts = [*_iterate_elements(content, byte_order)]
    if len(parts) < 2 or len(parts[0][1]) < 4:
        return
    matrix_class = struct.unpack_from(f"{byte_order}I", parts[0][1])[0] & 0xFF
    if matrix_class not in CLASSES_WITH_DIMENSIONS:
        return
    sizes = parts[1][1]
    dimensions = struct.unpack_from(f"{byte_order}{len(sizes) // 4}i", sizes)
    if matrix_class != SPARSE_CLASS and (prod(dimensions) > len(content) or min(dimensions, default=0) < 0):
        claimed = " x ".join(map(str, dimensions))
        raise RefusedFileError(f"a matrix of {claimed} elements in {len(content):,} bytes; a broken .mat file")
    if depth > MAX_DEPTH:
        raise RefusedFileError(f"matrices within matrices, {MAX_DEPTH} deep; at most so many are read")
    if matrix_class in NESTED_CLASSES:
        for inner_kind, inner_data in parts[2:]:
            _check_element(inner_kind, inner_data, byte_order, depth + 1)
