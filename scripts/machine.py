"""The machine on which a script measures: its cores, its processor, its system, and how busy it is."""

import os
import platform
from pathlib import Path
from typing import TypedDict


class Machine(TypedDict):
    """What a page says of a machine.

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


def read_load() -> float:
    """Return how many processes wanted a core at a time, in the mean of the last minute."""
    return os.getloadavg()[0]
