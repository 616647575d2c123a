"""Keep freed memory for the next allocation instead of handing it back to the system."""

import ctypes

# parameters of glibc's mallopt (malloc.h), and the largest number that it takes
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep large blocks that are freed, so that the next step of a training finds its memory ready.

    The activations of a training step on a CPU are blocks of many megabytes. glibc maps each of them anew and unmaps it
    when it is freed, so that every step faults in hundreds of thousands of pages, which the system fills with zeros.
    That took up to a fifth of the processor's time. The process then keeps the largest memory that it once had.

    Returns:
        Whether the C library has such a setting; only glibc does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
