"""Limits of the threads that libraries start beside those of a pool."""

from functools import cache

import torch
from threadpoolctl import ThreadpoolController


def limit_to_one_thread() -> None:
    """Limit torch to one thread within a thread of the pool, which already has one for each processor."""
    torch.get_num_threads()  # the first call in a thread sets the limit of that thread, so it comes before ours
    find_thread_pools().limit(limits=1, user_api="openmp")


@cache
def find_thread_pools() -> ThreadpoolController:
    """Find the libraries with threads of their own, for which all libraries of the process are looked through."""
    return ThreadpoolController()
