import errno
import multiprocessing
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dml.runtime.errors import InputError
from dml.runtime.files import holding

FORK = multiprocessing.get_context("fork")


def start(path: Path, *, start_child: bool = False) -> multiprocessing.process.BaseProcess:
    """A process that holds the lock, with a child, as a loader's worker, that outlives it."""
    ready = FORK.Event()

    def hold_and_sleep() -> None:
        os.setsid()
        with holding(path):
            if start_child:
                FORK.Process(target=time.sleep, args=(30,), daemon=False).start()
            ready.set()
            time.sleep(30)

    process = FORK.Process(target=hold_and_sleep)
    process.start()
    assert ready.wait(20)
    return process


def kill(process: multiprocessing.process.BaseProcess, *, group: bool = True) -> None:
    (os.killpg if group else os.kill)(process.pid or 0, signal.SIGKILL)
    process.join()


def test_a_held_lock_is_refused_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = start(path, start_child=True)
    group = os.getpgid(process.pid or 0)
    try:
        line = rf"^a folder: process {process.pid} on .* is at work on it; wait for it$"
        with pytest.raises(InputError, match=line), holding(path, name="a folder"):
            pass
        kill(process, group=False)
        with holding(path):  # which the child of a killed holder doesn't keep
            assert path.read_text().startswith(f"process {os.getpid()} on ")
            with pytest.raises(InputError), holding(path):  # one process can hold it once only
                pass
    finally:
        os.killpg(group, signal.SIGKILL)


def test_waiting_ends_with_the_holder(tmp_path: Path) -> None:
    process = start(tmp_path / "lock")

    def wait() -> None:
        with holding(tmp_path / "lock", wait=True):
            pass

    waiter = FORK.Process(target=wait)
    waiter.start()
    waiter.join(1)
    assert waiter.is_alive()
    kill(process)
    waiter.join(20)
    assert waiter.exitcode == 0


def test_without_locks_every_process_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with holding(tmp_path / "lock"), holding(tmp_path / "lock"):
        pass


def test_who_waits_for_a_lock_whose_file_is_deleted_gets_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holding(path):
        waiting = threading.Thread(target=lambda: (entered.enter_context(holding(path, wait=True)), ready.set()))
        entered, ready = ExitStack(), threading.Event()
        waiting.start()
        assert not ready.wait(0.2)
        path.unlink()
    assert ready.wait(20)
    with entered:
        assert path.exists()
        with pytest.raises(InputError), holding(path):
            pass
