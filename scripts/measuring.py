"""What scripts measure with: the machine and its other work, memory, and functions that take turns.

It takes the standard library alone, as the peers of bench_peers.py have environments of their own.
"""

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType


def describe_machine() -> dict[str, int | str | None]:
    """Return the facts about this machine that a page of measurements states."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    return {"cores": os.cpu_count(), "processor": processor, "system": platform.system()}


def read_other_seconds() -> float | None:
    """Read the processor seconds of all work but this process and its children that have ended; None without /proc."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts = map(int, statistics.read_text().split("\n")[0].split()[1:])
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def read_memory(name: str) -> float:
    """Read MiB of this process: "VmRSS" for now, "VmHWM" for the most since it began, or since `AddedMemory` began."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


class AddedMemory:
    """Measures the most memory that the ``with`` body adds to the process at any time, `peak` in MiB."""

    def __enter__(self) -> "AddedMemory":
        Path("/proc/self/clear_refs").write_text("5")  # this resets VmHWM
        self.peak, self._before = 0.0, read_memory("VmRSS")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peak = read_memory("VmHWM") - self._before


def time_call(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = perf_counter()
    work()
    return perf_counter() - started


def time_in_turns(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call of each function; they take turns, as the machine's speed changes."""
    turns = [{name: time_call(function) for name, function in functions.items()} for _ in range(rounds)]
    return {name: [turn[name] for turn in turns] for name in functions}
