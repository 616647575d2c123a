"""Freed memory that the process keeps."""

import platform
from pathlib import Path

import pytest
import torch
from forks import run_forked

from dml.runtime.processes import keep_freed_memory

COUNT_FAULTS = """
import resource
import torch
from dml.runtime.processes import keep_freed_memory
def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(2**24)  # 64 MiB, which are written to
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = count_faults()
assert keep_freed_memory(torch.device("cpu"))
count_faults()
print(before, count_faults())
"""


@pytest.mark.pipeline
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_the_next_allocation_finds_its_memory_ready(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COUNT_FAULTS)
    before, after = map(int, run_forked(str(tmp_path / "script.py")).stdout.split())
    assert before > 8 * 64 // 2  # a page has up to 2 MiB
    assert after < before / 8


def test_memory_is_left_alone_for_a_network_on_another_device() -> None:
    assert not keep_freed_memory(torch.device("meta"))
