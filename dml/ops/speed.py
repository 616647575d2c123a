from collections.abc import Callable
from datetime import timedelta
from time import monotonic

LINE_EVERY = 30.0
"""Seconds between two lines of output that goes into a file or a pipe."""


class SpeedMeter:
    """Measures how fast a long piece of work goes on, and tells when the next line about it is due.

    Args:
        every: seconds between two lines.
        clock: gives the time in seconds.
    """

    def __init__(self, every: float = LINE_EVERY, clock: Callable[[], float] = monotonic) -> None:
        self.every, self.clock = every, clock
        self.began = self.last_line = clock()
        self.done = self.images = 0

    def advance(self, images: int, units: int = 1) -> bool:
        """Count units of work, and the images in them -> whether a line is due."""
        self.done += units
        self.images += images
        return self.clock() - self.last_line >= self.every

    def pause(self, seconds: float) -> None:
        """Leave seconds that other work took out of the images a second; the time left takes them to come again."""
        self.last_line += seconds

    def line(self, left: int) -> str:
        """Return the images a second since the last line, and the time that the units left take at the mean speed."""
        now = self.clock()
        speed = self.images / max(now - self.last_line, 1e-9)
        seconds = left * (now - self.began) / max(1, self.done)
        self.last_line, self.images = now, 0
        return f"{speed:,.0f} images/s, {timedelta(seconds=round(seconds))} left"
