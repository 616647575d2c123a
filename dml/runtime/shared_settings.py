"""Settings of the whole process that several threads change for a while."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedSetting(Generic[T]):
    """A setting of the process that threads change while they need another value, and its former value afterwards.

    A thread that restored the value which it had read could restore that of another thread, and leave it for good.

    >>> values = [7]
    >>> setting = SharedSetting(lambda: values[0], lambda value: values.__setitem__(0, value), choose=min)
    >>> with setting.hold(3), setting.hold(5):
    ...     print(values[0])
    3
    >>> values[0]
    7

    Args:
        read: function that returns the setting.
        write: function that changes the setting.
        choose: function of the former value and those that threads need now; it returns the one that suits all.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], choose: Callable[[Sequence[T]], T]) -> None:
        self.read, self.write, self.choose = read, write, choose
        self._lock = Lock()
        self._values: list[T] = []  # the former value, and those that threads need now

    @contextmanager
    def hold(self, value: T) -> Iterator[None]:
        """Let the setting suit a value in the body of the ``with`` statement."""
        with self._lock:
            if len(self._values) < 2:
                self._values = [self.read()]
            self._values.append(value)
            self.write(self.choose(self._values))
        try:
            yield
        finally:
            with self._lock:
                former, *needed = self._values
                needed.remove(value)
                self._values = [former, *needed]
                self.write(self.choose(self._values))
