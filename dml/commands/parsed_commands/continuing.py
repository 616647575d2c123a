"""Commands that go on where they were interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager

from dml.runtime import signals


@contextmanager
def continuing() -> Iterator[None]:
    """Make the line about a signal tell that the same command goes on; it is printed within the ``with`` statement."""
    before = signals.state.hint
    signals.state.hint = lambda: "the same command goes on"
    try:
        yield
    finally:
        signals.state.hint = before
