"""The first line of a run, which is printed before the libraries are imported that take seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from dml.ops.console import console
from dml.ops.escaping import in_markup


def announce_start(command: str, config: DictConfig, choices: Mapping[str, Any], folder: Path) -> None:
    """Print one line about the run that begins: model, loss, data set and folder.

    Args:
        command: "train" or "evaluate".
        config: the composed configuration.
        choices: choice of each configuration group.
        folder: folder of the results.
    """
    root = config.dataset.root
    data = choices["dataset"] if root is None else f"{choices['dataset']} ({root})"
    if command == "train":
        summary = f"{choices['model']} with loss {choices['loss']} on {data}"
    else:
        summary = f"{config.checkpoint} on {data}"
    console.print(f"[bold]{command:9}[/]{in_markup(summary)}; results in {in_markup(folder)}")
