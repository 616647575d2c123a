import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dml.ops.filesystem.locks import FileLock

FORK = multiprocessing.get_context("fork")


def hold_and_sleep(path: Path, ready: object, start_child: bool) -> None:
    with FileLock(path).hold():
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
    lock = FileLock(tmp_path / "lock")
    assert not lock.is_held()
    process = start(lock.path)
    try:
        assert lock.is_held()
        with pytest.raises(BlockingIOError) as refused, lock.hold():
            pass
        assert f"process {process.pid} on " in (refused.value.strerror or "")
    finally:
        kill(process)
    assert not lock.is_held()
    with lock.hold():
        assert lock.is_held()


def test_one_process_can_hold_it_once_only(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock").hold(), pytest.raises(BlockingIOError), FileLock(tmp_path / "lock").hold():
        pass


def test_a_killed_holders_children_do_not_keep_it(tmp_path: Path) -> None:
    process = start(tmp_path / "lock", start_child=True)
    group = os.getpgid(process.pid or 0)
    kill(process, group=False)
    try:
        with FileLock(tmp_path / "lock").hold():
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
    with FileLock(folder / "lock").hold(wait=True):
        pass


HELD_TOGETHER = """
import sys
from pathlib import Path
from dml.ops.filesystem.locks import FileLock
with FileLock(Path(sys.argv[1])).hold():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_program_can_hold_it_together_with_its_parent(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with lock.hold():
        program = subprocess.Popen(
            [sys.executable, "-c", HELD_TOGETHER, str(lock.path)],
            pass_fds=[lock.descriptor],
            env=os.environ | lock.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout
        assert program.stdout.readline() == "held\n"
    # after the parent's end the program alone holds it
    assert lock.is_held()
    with pytest.raises(BlockingIOError), lock.hold():
        pass
    program.communicate("")
    assert not lock.is_held()


def test_a_descriptor_of_something_else_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "other")
    lock.path.touch()
    with other.hold():
        for environment in (other.environment, {"DML_INHERITED_LOCK": "999"}):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            with lock.hold():
                assert lock.is_held()
                assert lock.descriptor  # of its own


def test_who_waits_for_a_lock_whose_file_is_deleted_gets_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    path.parent.mkdir()
    first, second = FileLock(path), FileLock(path)
    with first.hold():
        waiting = threading.Thread(target=lambda: (entered.enter_context(second.hold(wait=True)), ready.set()))
        entered, ready = ExitStack(), threading.Event()
        waiting.start()
        assert not ready.wait(0.2)
        path.unlink()
        path.parent.rmdir()
    assert ready.wait(20)
    with entered:
        assert path.exists()
        with pytest.raises(BlockingIOError), FileLock(path).hold():
            pass
