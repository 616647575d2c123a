"""Variables of .mat files."""

from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat, whosmat

from dml.data.image_files.limits import LIST_OPTION, current_max_list_bytes, name_list_in_errors, read_list_bytes
from dml.ops.errors import InputError
from dml.ops.filesystem.regular_files import check_unpacked

ELEMENT_BYTES = 8
"""Memory that scipy takes for each element of a matrix, of cells and structures too, before it reads the first."""


def read_variable(path: Path, name: str) -> Any:
    """Read a variable of a .mat file as a one-dimensional array.

    Raises:
        InputError: if the file can't be read, has no such variable, or takes more than ``data.max_list_bytes``.
    """
    with name_list_in_errors(path):
        content = read_list_bytes(path)
        try:
            shapes = {variable: shape for variable, shape, _ in whosmat(BytesIO(content))}
        except Exception as error:  # scipy doesn't document which exceptions a broken file raises
            raise _broken(path, error) from error
        if name not in shapes:
            raise InputError(f"{path}: no variable {name} in it")
        check_unpacked(ELEMENT_BYTES * prod(shapes[name]), current_max_list_bytes(), LIST_OPTION)
        try:
            variables = loadmat(BytesIO(content), variable_names=[name], squeeze_me=True)
        except MemoryError:
            raise
        except Exception as error:
            raise _broken(path, error) from error
    return np.atleast_1d(variables[name])


def _broken(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read as a .mat file ({type(error).__name__})")
