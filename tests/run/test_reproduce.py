from pathlib import Path

import pytest

from dml.run.reproduce import Start, forks, processes


@pytest.mark.parametrize("start", [processes, forks])
def test_commands_run_and_a_failure_is_told(start: Start, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said: list[str] = []
    fine = ["train.py", "--cfg", "job", "loss=nra", f"hydra.run.dir={tmp_path}"]
    assert not start([fine, fine], said.append, 2)
    assert said == [f"[{number} of 2] python {' '.join(fine)}" for number in (1, 2)]
    assert capfd.readouterr().out.count("dml.losses.nra.") == 2
    assert start([fine, ["train.py", "loss=nothing"]], said.append, 1)
    assert "error: loss=nothing" in capfd.readouterr().err
