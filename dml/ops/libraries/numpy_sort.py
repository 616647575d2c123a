"""NumPy without the instructions with which its sort is slow on AMD's Zen 4.

NumPy sorts with AVX-512 wherever it is. On Zen 4 one of these instructions takes over a hundred cycles, and the sort
four times as long as with AVX2: https://github.com/numpy/x86-simd-sort/issues/6. Rankings are mostly sorts.
"""

import os
import sys
from itertools import takewhile
from pathlib import Path

VARIABLE = "NPY_DISABLE_CPU_FEATURES"
"""The environment variable that NumPy reads when it is imported."""

AVX512 = "X86_V4"
"""The name of AVX-512 in NumPy 2.4 and newer; older ones sort no faster without it."""


def choose_sort(processors: Path = Path("/proc/cpuinfo")) -> None:
    """Have NumPy sort without AVX-512 where that is faster, in this process and those that it starts.

    It does nothing once NumPy is imported, and a value that the user has given the variable stays.
    """
    if VARIABLE in os.environ or "numpy" in sys.modules or not _is_zen_4(processors):
        return
    from importlib.metadata import version

    if tuple(map(int, version("numpy").split(".")[:2])) >= (2, 4):
        os.environ[VARIABLE] = AVX512


def _is_zen_4(processors: Path) -> bool:
    """Return whether the first processor is AMD's Zen 4: of family 25, as is Zen 3, which has no AVX-512."""
    if not processors.exists():  # not Linux
        return False
    with processors.open() as lines:
        facts = [line.partition(":") for line in takewhile(str.strip, lines)]
    words = {name.strip(): value.split() for name, _, value in facts}
    return words.get("cpu family") == ["25"] and "avx512f" in words.get("flags", ())
