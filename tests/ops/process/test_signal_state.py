import copy
import pickle
import signal

import pytest

from dml.ops.process import signal_state
from dml.ops.process.signal_state import ENDED_AFTER, SAME_SIGNAL, SignalState, Stopped, shared


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(signal_state, "monotonic", clock)
    return clock


def test_signals_that_follow_closely_are_one(clock: Clock) -> None:
    state = SignalState()
    state.receive(signal.SIGTERM)
    clock.seconds += 0.9 * SAME_SIGNAL
    state.receive(signal.SIGINT)
    clock.seconds += 0.9 * SAME_SIGNAL
    state.receive(signal.SIGINT)
    assert (state.signum, state.is_repeated) == (signal.SIGTERM, False)
    clock.seconds += 1.1 * SAME_SIGNAL
    state.receive(signal.SIGINT)
    assert (state.signum, state.is_repeated) == (signal.SIGTERM, True)


def test_a_deferred_signal_is_deferred_until_it_is_repeated(clock: Clock) -> None:
    state = SignalState()
    state.deferred = lambda _: None
    state.receive(signal.SIGTERM)
    assert state.is_deferred
    assert shared[0] == 1
    clock.seconds += 2 * SAME_SIGNAL
    state.receive(signal.SIGTERM)
    assert not state.is_deferred
    assert shared[0] == 0


def test_an_exception_that_a_library_catches_is_swallowed(clock: Clock) -> None:
    state = SignalState()
    stopped = state.exception(signal.SIGINT)
    assert state.is_raised
    assert not state.is_swallowed
    del stopped
    assert not state.is_raised
    assert state.is_swallowed
    state.finish()
    assert not state.is_swallowed


def test_a_library_has_its_time_and_no_more(clock: Clock) -> None:
    state = SignalState()
    state.receive(signal.SIGINT)
    clock.seconds += 0.9 * ENDED_AFTER
    assert not state.is_overdue
    clock.seconds += 0.2 * ENDED_AFTER
    assert state.is_overdue


@pytest.mark.parametrize(
    ("position", "note", "hint", "line"),
    [
        ("at step 3 of 400", "", "resume=run goes on", "stopped at step 3 of 400 by SIGINT; resume=run goes on\n"),
        ("", "the last checkpoint is of step 2", "", "stopped at once by SIGINT; the last checkpoint is of step 2\n"),
        ("", "", "", "stopped by SIGINT\n"),
    ],
)
def test_the_line_for_the_user(position: str, note: str, hint: str, line: str) -> None:
    state = SignalState()
    state.receive(signal.SIGINT)
    state.position, state.checkpoint_note = position, note
    state.hint = lambda: hint
    assert state.finish() == (130, line)


def test_the_exception_can_be_sent_to_another_process() -> None:
    stopped = Stopped(signal.SIGTERM)
    for received in (pickle.loads(pickle.dumps(stopped)), copy.copy(stopped)):
        assert (received.code, received.signum) == (143, signal.SIGTERM)
