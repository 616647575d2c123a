"""Processes that share work on images, and the way in which a data loader starts its workers."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from time import sleep
from typing import TypeVar

import torch

from dml.runtime.errors import InputError
from dml.runtime.processes import follow_parent

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_in_processes(work: Callable[[Job], Result], jobs: Sequence[Job], processes: int | None) -> Iterator[Result]:
    """Call ``work`` with each job in parallel processes, and yield each result as soon as it is there.

    ``work`` is a function of a module, because another process can import no other function. None is one process for
    each core, and 1 calls ``work`` in this one, in the order of the jobs.
    """
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(processes, initializer=_set_up_process) as pool:
        try:
            for future in as_completed([pool.submit(work, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {processes} processes that read images was killed: most often the memory is short, and fewer "
                "processes take less; what is done is kept, and the same command goes on with it"
            ) from error
        finally:  # without this, leaving early would wait until all other jobs are done
            pool.shutdown(cancel_futures=True)


def choose_start_method(num_workers: int, start_method: str | None = None) -> str | None:
    """Return the method by which a data loader has to start its workers; None takes Python's default.

    In the processes of ``launcher=joblib``, the default is joblib's "loky", which no data loader can use.
    """
    is_in_joblib = multiprocessing.get_start_method(allow_none=True) == "loky"
    return (start_method or ("fork" if is_in_joblib else None)) if num_workers else None


def pause_before_forks() -> None:
    """Wait, if this process trains with others, until the threads of gloo have done what they had to.

    After an exchange, a thread of gloo frees tensors, for which it registers with Python for less than 1 ms. Before
    3.12, Python copies the lock of that register in a fork as it is, and if a thread held it, the worker of a data
    loader never began: with it one run of ten hung. The thread that forks exchanges nothing meanwhile.
    """
    if sys.version_info < (3, 12) and torch.distributed.is_available() and torch.distributed.is_initialized():
        sleep(0.02)


def _set_up_process() -> None:
    torch.set_num_threads(1)
    follow_parent()
