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


def test_a_held_lock_is_refused_and_names_its_holder(tmp_path: Path) -> None:
    path, ready = tmp_path / "lock", FORK.Event()

    def hold_with_child() -> None:
        os.setsid()
        with holding(path):
            FORK.Process(target=time.sleep, args=(30,), daemon=False).start()  # as a loader's worker
            ready.set()
            time.sleep(30)

    process = FORK.Process(target=hold_with_child)
    process.start()
    assert ready.wait(20)
    assert process.pid is not None
    try:
        line = rf"^a folder: process {process.pid} on .* is at work on it; wait for it$"
        with pytest.raises(InputError, match=line), holding(path, name="a folder"):
            pass
        process.kill()
        process.join()
        with holding(path):  # which the child of a killed holder doesn't keep
            assert path.read_text().startswith(f"process {os.getpid()} on ")
            with pytest.raises(InputError), holding(path):  # one process can hold it once only
                pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)


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
