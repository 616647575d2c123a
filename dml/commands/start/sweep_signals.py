"""Signals to a sweep: the workers that joblib has started stop after a step, and one line tells how to go on."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dml.commands.arguments import asks_for_sweep
from dml.runtime import processes, signals


def sweep_hint() -> str:
    """Return how a sweep goes on that a signal has stopped."""
    return "the same command goes on with the sweep"


@contextmanager
def stopping_workers(arguments: Sequence[str]) -> Iterator[None]:
    """At a signal, wait for the workers that joblib has started for a sweep: each stops its run after a step."""
    if not asks_for_sweep(arguments):
        yield
        return
    signals.state.hint = sweep_hint
    if not {"launcher=joblib", "hydra/launcher=joblib"} & set(arguments):
        yield
        return
    os.environ[signals.SILENT] = "1"  # of the workers
    try:
        with processes.waiting_for_processes(_stop_workers):
            yield
    finally:
        os.environ.pop(signals.SILENT)


def _stop_workers() -> None:
    logging.disable()  # Optuna's sweeper would announce that the runs which were stopped have no result
    processes.stop_processes()


def run_in_worker(run: Callable[[], Any]) -> Any:
    """Do a run in a worker of joblib, unless the sweep is stopping; the process that waits for it tells the user."""
    signals.handle_signals()
    signals.start_raising()
    if signals.is_requested():
        return None
    try:
        return run()
    except signals.Stopped:
        signals.report()
        return None
