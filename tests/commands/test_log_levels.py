import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

FIRST_IMPORT = """
import logging, sys, threading
logging.basicConfig(stream=sys.stdout, level=logging.INFO)  # as Hydra does
threading.Timer = lambda seconds, warn: type("", (), {"start": staticmethod(warn), "cancel": lambda self: None})()
from dml.commands.start import quiet
quiet()
import matplotlib.font_manager
"""


def test_matplotlib_says_nothing_of_its_fonts(tmp_path: Path) -> None:
    """Neither of the fonts that it has found, nor that it is going to look for them: its timer rings at once."""
    command = [sys.executable, "-c", FIRST_IMPORT]
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    assert list(tmp_path.glob("fontlist*"))
    assert done.stdout + done.stderr == ""
