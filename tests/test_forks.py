import signal
from pathlib import Path

import pytest
from conftest import ROOT
from forks import FinishedScript, ForkedScript, run_forked

pytestmark = pytest.mark.pipeline

SCRIPT = """
import os, sys
os.write(1, b"of the system, ")
print(os.getcwd(), sys.argv[1:], __name__)
sys.stderr.write("wrong\\n")
sys.exit(3)
"""


def test_what_a_forked_script_prints_and_its_exit_code_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    expected = f"of the system, {ROOT} ['a=1'] __main__\n"
    assert run_forked(str(script), "a=1") == FinishedScript(3, expected, "wrong\n")


def test_a_forked_script_that_hangs_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('begun')\ntime.sleep(100)\n")
    process = ForkedScript(str(script))
    with pytest.raises(AssertionError, match=r"0\.5 s were not enough: .*begun"):
        process.finish(timeout=0.5)
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_a_forked_script_leaves_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nif os.fork() == 0:\n    time.sleep(100)\n")
    process = ForkedScript(str(script))
    with pytest.raises(AssertionError, match=r"1 s were not enough"):
        process.finish(timeout=1)
    assert process.returncode == 0
