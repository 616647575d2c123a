"""Settings of the whole process that several threads change for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedSetting(Generic[T]):
    """A setting of the process that has one value while any thread needs it, and its former value afterwards.

    A thread that restored the value which it had read could restore that of another thread, and leave it for good.

    >>> values = ["low"]
    >>> setting = SharedSetting(lambda: values[0], lambda value: values.__setitem__(0, value), "high")
    >>> with setting.hold():
    ...     print(values[0])
    high
    >>> values[0]
    'low'

    Args:
        read: function that returns the setting.
        write: function that changes the setting.
        value: value that threads need.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], value: T) -> None:
        self.read, self.write, self.value = read, write, value
        self._lock = Lock()
        self._holders = 0
        self._former = value

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the setting have the value in the body of the ``with`` statement."""
        with self._lock:
            if not self._holders:
                self._former = self.read()
                self.write(self.value)
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self.write(self._former)
