"""Integers in the order of distances, in whose last bits there is room for a code.

Such a key is the magnitude of a float32 as an integer m, or -m, shifted by the bits of the code. A float32 below 2
consists of a sign bit and 30 bits that ascend with the magnitude, so that 32 bits have room for one bit of a code. For
more, magnitudes are counted from the smallest one that fits.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int32]

TOO_SMALL = {1: 0.0, 2: 2.0**-63, 3: 2.0**-31}
"""The largest magnitude above 0 that doesn't fit beside a code of so many bits; more bits have no room."""

HIGHEST_BIT = np.int32(-(2**31))


def keys_fit(distances: Floats, bits: int, scratch: Keys) -> bool:
    """Tell whether keys of these distances have room for a code of so many bits. (R, N), scratch memory (R, N)"""
    if bits not in TOO_SMALL:
        return False
    if bits == 1:
        return True
    magnitudes = np.absolute(distances, out=scratch.view(np.float32))
    smallest = magnitudes.min() or magnitudes.min(where=magnitudes > 0, initial=np.inf)
    return bool(smallest > TOO_SMALL[bits])


def make_keys(distances: Floats, bits: int, out: Keys | None = None) -> Keys:
    """Convert distances between -2 and 2 to keys with code 0; -0 and 0 become the same. (...) -> (...)

    As an integer, a negative float32 is -2^31 + m. Its absolute value is 2^31 - m, which becomes -m when the shift
    drops the highest bit. The smallest magnitude, which must be subtracted from m, is 2^31 after the shift, but for
    multiples of 2^32. Changing the highest bit subtracts it from m, and adds it to -m.
    """
    keys = np.absolute(distances.view(np.int32), out=out)
    keys <<= bits
    if bits > 1:
        keys ^= HIGHEST_BIT
        if keys.size and keys.min() == HIGHEST_BIT:
            keys[keys == HIGHEST_BIT] = 0  # the distance 0
    return keys


def put_last(keys: Keys, bits: int, items: Integers) -> None:
    """Give some items (R, M) of each row the largest key with code 0; rows with fewer are filled with -1. (R, N)"""
    rows, columns = np.nonzero(items >= 0)
    keys[rows, items[rows, columns]] = 2**31 - 2**bits
