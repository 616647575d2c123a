"""The commands whose arguments Hydra composes, such as ``dml train``, ``dml inspect`` and ``dml shift``."""

import sys
from collections.abc import Sequence

from dml.commands.hydra_command import main


def train(arguments: Sequence[str]) -> None:
    """Train a model, test it once and write the results to the run's folder.

    Args:
        arguments: overrides and Hydra's options, such as ["loss=rll", "--multirun", "seed=1,2"].
    """
    _run("train", arguments)


def evaluate(arguments: Sequence[str]) -> None:
    """Test a checkpoint again.

    Args:
        arguments: overrides, such as ["checkpoint=outputs/RUN/checkpoints/best.ckpt"].
    """
    _run("evaluate", arguments)


def prepare(arguments: Sequence[str]) -> None:
    """Check a data set and, with ``--resize 256``, keep its images decoded for trainings.

    Args:
        arguments: overrides; ``--resize 256`` stands for ``resize=256``.
    """
    _run("prepare", replace_resize_option(arguments))


def inspect(arguments: Sequence[str]) -> None:
    """Show what a data set holds, and what networks find in it before any training.

    Args:
        arguments: overrides, such as ["dataset=folder", "dataset.root=mine", "backbones=[resnet18]"].
    """
    _run("inspect", arguments)


def audit(arguments: Sequence[str]) -> None:
    """Find what may be wrong with a data set, and write a page and a file of corrections to edit.

    Args:
        arguments: overrides, such as ["dataset=folder", "dataset.root=mine", "model=resnet18"].
    """
    _run("audit", arguments)


def shift(arguments: Sequence[str]) -> None:
    """Write class splits of growing distance between training and test.

    Args:
        arguments: overrides, such as ["dataset=folder", "dataset.root=mine", "levels=5"].
    """
    _run("shift", arguments)


def replace_resize_option(arguments: Sequence[str]) -> list[str]:
    """Replace ``--resize 256`` or ``--resize=256`` among the arguments by Hydra's ``resize=256``."""
    overrides: list[str] = []
    for argument in arguments:
        if overrides and overrides[-1] == "--resize":
            overrides[-1] = f"resize={argument}"
        else:
            overrides.append(argument.removeprefix("--") if argument.startswith("--resize=") else argument)
    return overrides


def _run(command: str, arguments: Sequence[str]) -> None:
    sys.argv[1:] = [command, *arguments]  # Hydra takes them from there
    main(command, is_named=True)
