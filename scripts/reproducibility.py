"""Writes docs/reproducibility.md from the experiments' headers: python scripts/reproducibility.py [PAGE]."""

import sys
from pathlib import Path

from dml.ops.files import replacing
from dml.run.cli import one_line_errors
from dml.run.protocols_page import page

if __name__ == "__main__":
    with one_line_errors():
        path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reproducibility.md")
        with replacing(path) as partial:
            partial.write_text(page(), encoding="utf-8")
