"""The machine on which a script measures: its cores, its processor, its system, and what else it does."""

import os
import platform
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TypedDict


class Machine(TypedDict):
    """The facts about a machine that a page of measurements states.

    Args:
        cores: number of processor cores.
        processor: name of the processor.
        system: name of the operating system.
    """

    cores: int | None
    processor: str
    system: str


def describe_machine() -> Machine:
    """Describe this machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(cores=os.cpu_count(), processor=names[0] if names else platform.machine(), system=platform.system())


class OtherWork:
    """Measures how many cores were busy with other work while the ``with`` body and the processes it waits for ran.

    Attributes:
        cores: mean number of cores that were busy with other work; None if the system has no /proc/stat.
    """

    def __enter__(self) -> "OtherWork":
        self.cores: float | None = None
        self._started = (perf_counter(), _read_busy_seconds(), _read_own_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started, busy_before, used_before = self._started
        busy, used = _read_busy_seconds(), _read_own_seconds()
        if busy is not None and busy_before is not None:
            self.cores = max(0.0, (busy - busy_before - (used - used_before)) / (perf_counter() - started))


def _read_busy_seconds() -> float | None:
    """Read the seconds that all cores together were busy since the machine started."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts = map(int, statistics.read_text().split("\n")[0].split()[1:])
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


def _read_own_seconds() -> float:
    """Read the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
