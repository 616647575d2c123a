import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from dml.commands.error_lines import one_line_errors
from dml.runtime import signals
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.signals import SAME_SIGNAL, SignalState, Stopped


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Signals are handled in the test process, by a clock of the test."""
    clock = Clock()
    monkeypatch.setattr(signals, "monotonic", clock)
    with signals.handling():
        yield clock


def send(signum: int) -> None:
    """Send a signal to this process, which handles it before the next line."""
    os.kill(os.getpid(), signum)


def end_in_fork(function: Callable[[], None]) -> tuple[int, str]:
    """Call a function in a copy of this process -> exit code, and what it printed to stderr."""

    def run() -> None:
        os.dup2(errors.fileno(), 2)
        sys.stderr = errors  # pytest has replaced it
        signals.handle_signals()
        function()

    with tempfile.TemporaryFile("w+") as errors:
        process = get_context("fork").Process(target=run)
        process.start()
        process.join()
        errors.seek(0)
        assert process.exitcode is not None
        return process.exitcode, errors.read()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.usefixtures("handled")
def test_a_signal_raises_an_exception(signum: int, code: int) -> None:
    with pytest.raises(Stopped) as stopped:
        send(signum)
    assert stopped.value.code == code
    assert signals.is_requested()


def test_the_former_handlers_are_restored() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with signals.handling():
        assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] != before
        with signals.handling():  # the inner one changes nothing
            pass
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a library does
        signals.handle_again()
        with pytest.raises(Stopped):
            send(signal.SIGTERM)
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before
    assert not signals.is_requested()


def test_a_deferred_signal_waits_for_the_check(handled: Clock) -> None:
    passed_on = []
    signals.defer("stopping after this step", lambda: passed_on.append(1))
    signals.check()
    send(signal.SIGTERM)
    handled.seconds += 0.9 * SAME_SIGNAL
    send(signal.SIGINT)  # as a launcher does
    handled.seconds += 0.9 * SAME_SIGNAL
    send(signal.SIGINT)
    assert passed_on == [1]
    with pytest.raises(Stopped) as stopped:
        signals.check()
    assert stopped.value.code == 143  # of the first signal


def test_a_second_signal_ends_the_process_at_once_and_removes_its_partial_files(tmp_path: Path) -> None:
    def write() -> None:
        signals.start_raising()
        signals.defer("stopping after this step")
        signals.state.checkpoint_note = "the last checkpoint is of step 2"
        with replacing(tmp_path / "file") as partial:
            partial.write_text("half")
            send(signal.SIGINT)
            signals.state.received_at -= 2 * SAME_SIGNAL
            send(signal.SIGINT)

    assert end_in_fork(write) == (130, "stopped at once by SIGINT; the last checkpoint is of step 2\n")
    assert not [*tmp_path.iterdir()]


def test_a_user_who_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ANNOUNCED_AFTER", 0.1)

    def wait() -> None:
        signals.start_raising()
        signals.defer("stopping after this step")
        send(signal.SIGTERM)
        time.sleep(0.3)
        with one_line_errors():
            signals.check()

    lines = ["stopping after this step; Ctrl-C again stops at once", "stopped by SIGTERM"]
    code, errors = end_in_fork(wait)
    assert (code, errors.splitlines()) == (143, lines)


def test_imports_end_at_once() -> None:
    assert end_in_fork(lambda: send(signal.SIGTERM)) == (143, "stopped by SIGTERM\n")


def test_a_signal_that_python_ignores_ends_the_process() -> None:
    class Ends:
        def __del__(self) -> None:
            send(signal.SIGINT)

    def delete() -> None:
        signals.start_raising()
        ends = Ends()
        del ends
        time.sleep(20)

    assert end_in_fork(delete) == (130, "stopped by SIGINT\n")


def test_an_error_of_a_cleanup_does_not_hide_the_signal() -> None:
    def clean_up() -> None:
        with one_line_errors():
            try:
                send(signal.SIGINT)
            finally:
                raise InputError("of a cleanup")  # as OmegaConf's, where a signal comes while it builds a list

    assert end_in_fork(clean_up) == (130, "stopped by SIGINT\n")


def test_a_forked_child_leaves_signals_to_its_parent() -> None:
    def fork() -> None:
        signals.start_raising()
        child = os.fork()
        if child == 0:
            send(signal.SIGTERM)
            os._exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert end_in_fork(fork) == (7, "")


@pytest.mark.parametrize(
    ("position", "note", "hint", "line"),
    [
        ("at step 3 of 400", "", "resume=run goes on", "stopped at step 3 of 400 by SIGINT; resume=run goes on\n"),
        ("", "the last checkpoint is of step 2", "", "stopped at once by SIGINT; the last checkpoint is of step 2\n"),
        ("", "", "", "stopped by SIGINT\n"),
    ],
)
def test_the_line_for_the_user(position: str, note: str, hint: str, line: str) -> None:
    state = SignalState(signal.SIGINT, position=position, checkpoint_note=note, hint=lambda: hint)
    assert (state.code, state.format_line()) == (130, line)


def test_one_process_of_several_tells_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert not SignalState().is_silent
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert SignalState().is_silent
    monkeypatch.setenv("RANK", "0")
    assert not SignalState().is_silent
    monkeypatch.setenv(signals.SILENT, "1")
    assert SignalState().is_silent
