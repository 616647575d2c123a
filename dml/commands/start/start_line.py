"""The first line of a run, which is printed before the libraries are imported that take seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.escaping import in_markup
from dml.ops.text.console import console


def announce_start(command: str, config: DictConfig, choices: Mapping[str, Any], folder: Path) -> None:
    """Print one line about the run that begins: model, loss, data set and folder.

    Args:
        command: "train" or "evaluate".
        config: the composed configuration.
        choices: choice of each configuration group.
        folder: folder of the results.
    """
    root = OmegaConf.select(config, "dataset.root")
    dataset = _name_choice("dataset", config, choices)
    data = dataset if root is None else f"{dataset} ({root})"
    if command == "train":
        model, loss = (_name_choice(group, config, choices) for group in ("model", "loss"))
        summary = f"{model} with loss {loss} on {data}"
    else:
        summary = f"{config.checkpoint} on {data}"
    console.print(f"[bold]{command:9}[/]{in_markup(summary)}; results in {in_markup(folder)}")


def _name_choice(group: str, config: DictConfig, choices: Mapping[str, Any]) -> str:
    """Return a group's choice or, where the command line replaced it by a class of the user's, that class's name."""
    return str(choices.get(group) or OmegaConf.select(config, f"{group}._target_"))
