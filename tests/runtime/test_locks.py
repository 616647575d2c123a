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
from dml.runtime.locks import holding

FORK = multiprocessing.get_context("fork")


def hold_and_sleep(path: Path, ready: object, start_child: bool) -> None:
    with holding(path):
        if start_child:  # a loader's worker, which outlives its parent
            FORK.Process(target=time.sleep, args=(30,), daemon=False).start()
        ready.set()  # type: ignore[attr-defined]
        time.sleep(30)


def start(path: Path, *, start_child: bool = False) -> multiprocessing.process.BaseProcess:
    """A process that holds the lock."""
    ready = FORK.Event()
    process = FORK.Process(target=lambda: (os.setsid(), hold_and_sleep(path, ready, start_child)))
    process.start()
    assert ready.wait(20)
    return process


def kill(process: multiprocessing.process.BaseProcess, *, group: bool = True) -> None:
    (os.killpg if group else os.kill)(process.pid or 0, signal.SIGKILL)
    process.join()


def test_a_held_lock_is_refused_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = start(path)
    try:
        line = rf"^a folder: process {process.pid} on .* is at work on it; wait for it$"
        with pytest.raises(InputError, match=line), holding(path, name="a folder"):
            pass
    finally:
        kill(process)
    with holding(path):
        assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_one_process_can_hold_it_once_only(tmp_path: Path) -> None:
    with holding(tmp_path / "lock"), pytest.raises(InputError), holding(tmp_path / "lock"):
        pass


def test_a_killed_holders_children_do_not_keep_it(tmp_path: Path) -> None:
    process = start(tmp_path / "lock", start_child=True)
    group = os.getpgid(process.pid or 0)
    kill(process, group=False)
    try:
        with holding(tmp_path / "lock"):
            pass
    finally:
        os.killpg(group, signal.SIGKILL)


def test_waiting_ends_with_the_holder(tmp_path: Path) -> None:
    process = start(tmp_path / "lock")
    waiter = FORK.Process(target=_wait, args=(tmp_path,))
    waiter.start()
    waiter.join(1)
    assert waiter.is_alive()
    kill(process)
    waiter.join(20)
    assert waiter.exitcode == 0


def _wait(folder: Path) -> None:
    with holding(folder / "lock", wait=True):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_every_process_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

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
