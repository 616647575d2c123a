import os
import signal

import pytest
from joblib.externals.loky import get_reusable_executor
from torch.utils.data import DataLoader

from dml.data.worker_processes import choose_start_method, run_in_processes
from dml.runtime.errors import InputError


def double(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.parametrize("processes", [1, 2, None])
@pytest.mark.distributed
def test_all_jobs_are_done(processes: int | None) -> None:
    assert sorted(run_in_processes(double, range(5), processes)) == [0, 2, 4, 6, 8]


def test_a_killed_process_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^one of 2 processes that read images was killed: .* the same command goes"):
        list(run_in_processes(double, [1, -1, 2], 2))


def load_in_a_process() -> list[int]:
    loader = DataLoader([1, 2, 3], num_workers=1, multiprocessing_context=choose_start_method(1))  # type: ignore[arg-type]
    return [int(number) for number in loader]


@pytest.mark.pipeline
def test_a_loader_has_a_process_within_one_of_joblibs() -> None:
    assert choose_start_method(1) is None
    assert get_reusable_executor(max_workers=1).submit(load_in_a_process).result() == [1, 2, 3]
