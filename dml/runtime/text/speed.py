from collections.abc import Callable
from datetime import timedelta
from time import monotonic

LINE_EVERY = 30.0
"""Seconds between two lines of progress in a file or a pipe."""


class ProgressMeter:
    """Counts the progress of a long task, and tells when the next line about it is due.

    `dml.training.meter.SpeedMeter`, a callback, measures the speed of a training and writes it to a file.

    >>> seconds = iter([0.0, 40.0, 40.0])
    >>> meter = ProgressMeter(interval=30.0, clock=lambda: next(seconds))
    >>> meter.advance(images=800), meter.line(left=3)
    (True, '20 images/s, 0:02:00 left')

    Args:
        interval: seconds between two lines.
        first: seconds before the first line, if they are less; None for those between two.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self, interval: float = LINE_EVERY, first: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.interval, self.due_after, self.clock = interval, min(interval, first or interval), clock
        self.began = self.last_line = clock()
        self.done = self.images = 0

    def advance(self, images: int, units: int = 1) -> bool:
        """Count finished units of work and the images in them; return whether a line is due."""
        self.done += units
        self.images += images
        return self.clock() - self.last_line >= self.due_after

    def pause(self, seconds: float) -> None:
        """Exclude the seconds of other work from the images a second; the estimate of the time left includes them."""
        self.last_line += seconds

    def line(self, left: int) -> str:
        """Return a line of progress: the images a second since the last line, and the estimated time left.

        Args:
            left: number of units of work that aren't finished.
        """
        now = self.clock()
        speed = self.images / max(now - self.last_line, 1e-9)
        seconds = left * (now - self.began) / max(1, self.done)
        self.last_line, self.images, self.due_after = now, 0, self.interval
        return f"{speed:,.0f} images/s, {timedelta(seconds=round(seconds))} left"
