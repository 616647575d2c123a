import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import parent_process
from threading import Thread
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_processes(work: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """The results of the jobs, as they are done; with one process the work is done in this one, in order.

    Args:
        work: a function of a module, so that other processes find it.
        jobs: what it is called with.
        processes: how many, of one thread each.
    """
    if processes == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(processes, initializer=_set_up) as pool:
        try:
            for future in as_completed([pool.submit(work, job) for job in jobs]):
                yield future.result()
        finally:  # whoever stops early doesn't wait for the rest
            pool.shutdown(cancel_futures=True)


def _set_up() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's Ctrl-C ends it
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent can't stop its workers, and they would wait for work for ever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
