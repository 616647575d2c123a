import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import end_in_fork

from dml.commands.error_lines import one_line_errors
from dml.runtime import signals
from dml.runtime.files import replacing
from dml.runtime.signals import GRACE_PERIOD, Stopped


def send(signum: int) -> None:
    """Send a signal to this process, which handles it before the next line."""
    os.kill(os.getpid(), signum)


def defer(function: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls another one as a command does whose signals are deferred."""

    def call() -> None:
        with one_line_errors(), signals.deferring("stopping after this step"):
            function()

    return call


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.pipeline
def test_a_signal_ends_a_program_and_removes_its_partial_files(
    signum: signal.Signals, code: int, tmp_path: Path
) -> None:
    def write() -> None:
        with replacing(tmp_path / "file") as partial:
            partial.write_text("half")
            send(signum)

    assert end_in_fork(write) == (code, f"stopped by {signum.name}\n")
    assert not [*tmp_path.iterdir()]


def test_no_library_keeps_a_signal_from_ending_a_program() -> None:
    class Ends:
        def __del__(self) -> None:  # Python ignores what is raised here
            send(signal.SIGINT)

    def delete() -> None:
        Ends()
        time.sleep(20)

    assert end_in_fork(delete) == (130, "stopped by SIGINT\n")


def test_a_buffer_that_is_being_written_hides_no_line(tmp_path: Path) -> None:
    reader, writer = os.pipe()  # nobody reads: the write waits, and the signal comes meanwhile

    def write() -> None:
        sys.stdout = os.fdopen(writer, "w")
        signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        sys.stdout.buffer.write(bytes(1 << 20))

    assert end_in_fork(write) == (143, "stopped by SIGTERM\n")
    os.close(reader)
    os.close(writer)


def test_a_deferred_signal_waits_for_the_check_and_for_the_end() -> None:
    handlers = [signal.getsignal(signum) for signum in signals.list_handled()]
    passed_on = []

    def train() -> None:
        with signals.deferring("stopping", lambda: passed_on.append(1)):
            signals.check()
            send(signal.SIGTERM)
            send(signal.SIGINT)  # as a launcher does
            with pytest.raises(Stopped):
                signals.check("at step 3 of 400")

    with pytest.raises(Stopped) as stopped:
        train()
    assert passed_on == [1]
    assert stopped.value.code == 143  # of the first signal
    signals.state.hint = lambda: "resume=run goes on"
    assert signals.format_line() == "stopped at step 3 of 400 by SIGTERM; resume=run goes on\n"
    assert [signal.getsignal(signum) for signum in signals.list_handled()] == handlers
    signals.forget()
    signals.check()
    assert signals.format_line() == "stopped by SIGTERM\n"


def test_handlers_that_a_library_has_replaced_are_set_again() -> None:
    def train() -> None:
        with signals.deferring("stopping"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signals.handle_again()
            send(signal.SIGTERM)

    with pytest.raises(Stopped):
        train()


def test_a_second_signal_ends_the_process_at_once_and_removes_its_partial_files(tmp_path: Path) -> None:
    @defer
    def write() -> None:
        with replacing(tmp_path / "file") as partial:
            partial.write_text("half")
            send(signal.SIGINT)
            signals.state.received_at -= 2 * GRACE_PERIOD
            send(signal.SIGINT)

    assert end_in_fork(write) == (130, "stopped by SIGINT\n")
    assert not [*tmp_path.iterdir()]


def test_a_user_who_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE_PERIOD", 0.1)

    @defer
    def wait() -> None:
        send(signal.SIGTERM)
        time.sleep(0.3)

    lines = ["stopping after this step; Ctrl-C again stops at once", "stopped by SIGTERM"]
    code, errors = end_in_fork(wait)
    assert (code, errors.splitlines()) == (143, lines)


def test_an_error_after_the_signal_does_not_hide_it() -> None:
    @defer
    def clean_up() -> None:
        send(signal.SIGINT)
        raise KeyError("of a cleanup")  # as of a connection to a process that has stopped, too

    assert end_in_fork(clean_up) == (130, "stopped by SIGINT\n")


@pytest.mark.pipeline
def test_a_forked_child_leaves_signals_to_its_parent() -> None:
    def fork() -> None:
        child = os.fork()
        if child == 0:
            send(signal.SIGTERM)
            os._exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert end_in_fork(fork) == (7, "")
