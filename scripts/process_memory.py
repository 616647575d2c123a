"""What a piece of work adds to the memory of this process, as Linux counts it; the scripts that measure use it."""

from pathlib import Path
from types import TracebackType


class AddedMemory:
    """Measures the memory that the ``with`` body adds to the process, in MiB.

    Attributes:
        peak: the most that was added at any time.
        left: memory that is still added at the end.
    """

    def __enter__(self) -> "AddedMemory":
        Path("/proc/self/clear_refs").write_text("5")  # this resets VmHWM
        self.peak = self.left = 0.0
        self._before = _read_status("VmRSS")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peak, self.left = _read_status("VmHWM") - self._before, _read_status("VmRSS") - self._before


def _read_status(name: str) -> float:
    """Read MiB of the process: "VmRSS" for now, "VmHWM" for the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024
