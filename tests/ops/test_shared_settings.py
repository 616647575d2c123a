from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from dml.ops.precision import without_tf32


def test_threads_share_a_setting_and_restore_it_once() -> None:
    """The second thread begins while the first holds the setting, and ends after it."""
    steps = Barrier(2)

    def hold(enters_first: bool) -> str:
        if not enters_first:
            steps.wait()
        with without_tf32():
            if enters_first:
                steps.wait()
            steps.wait()
            if not enters_first:
                steps.wait()  # the first one has left
                return torch.get_float32_matmul_precision()
        steps.wait()
        return ""

    torch.set_float32_matmul_precision("high")
    try:
        with ThreadPoolExecutor(2) as threads:
            assert [*threads.map(hold, [True, False])] == ["", "highest"]
        assert torch.get_float32_matmul_precision() == "high"
        with pytest.raises(ValueError, match="in the body"), without_tf32():
            raise ValueError("in the body")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
