"""Verifies a data set and, with ``--resize 256``, keeps its images decoded for training; conf/prepare.yaml says how.

python scripts/prepare.py dataset=sop dataset.root=/data/Stanford_Online_Products --resize 256
"""

import sys
from collections.abc import Sequence

from dml.run import main


def as_overrides(arguments: Sequence[str]) -> list[str]:
    """``--resize 256`` and ``--resize=256`` as Hydra takes them: ``resize=256``."""
    overrides: list[str] = []
    for argument in arguments:
        if overrides and overrides[-1] == "--resize":
            overrides[-1] = f"resize={argument}"
        else:
            overrides.append(argument.removeprefix("--") if argument.startswith("--resize=") else argument)
    return overrides


if __name__ == "__main__":
    sys.argv[1:] = as_overrides(sys.argv[1:])
    main("prepare")
