"""Keep freed memory for the next allocation instead of handing it back to the system."""

import ctypes
import sys

import torch

# parameters of glibc's mallopt (malloc.h), and the largest number that it takes
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST_INT = 2**31 - 1


def keep_freed_memory(device: torch.device) -> bool:
    """Keep large blocks that are freed, so that a network on a CPU finds the memory for its next batch ready.

    The activations of a batch on a CPU are blocks of many megabytes. glibc maps each of them anew and unmaps it when it
    is freed, so that every batch faults in hundreds of thousands of pages, which the system fills with zeros. That took
    up to a fifth of the time of a training step, and two fifths of the time of embedding photographs. From then on the
    process keeps the largest memory that it once had, so nothing calls this but commands, which end with their work.
    Returns whether freed memory is kept from now on; only glibc has such a setting.
    """
    if device.type != "cpu" or sys.platform == "win32":  # where ctypes.CDLL(None) is an error
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
