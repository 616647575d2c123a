"""The weights that a training begins with, if they come from a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from dml.models.adapters import merge_updates
from dml.models.recurrent import AnyModel
from dml.run import builders, building
from dml.run.settings import Settings
from dml.run.stages import find_stage
from dml.run.stored import extract_run, open_stored
from dml.runtime.errors import InputError
from dml.training.checkpoints import (
    TrainingProgress,
    load_initial_state,
    load_initial_weights,
    load_model,
    read_checkpoint,
)


def load_beginning(settings: Settings, model: nn.Module, path: Path) -> None:
    """Load the weights that a stage begins with from a checkpoint, which may have been trained with another adapter.

    Updates of LoRA go on as they are if the model has the same ones, at the same scale. Otherwise they are added to the
    weights first.
    """
    checkpoint = read_checkpoint(path, lazily=True)
    shapes = {name: value.shape for name, value in checkpoint["state_dict"].items() if ".lora_" in name}
    present = {f"model.{name}": value.shape for name, value in model.state_dict().items() if ".lora_" in name}
    stage = read_stage(checkpoint) if shapes else None
    if stage is None or (shapes == present and stage.adapter.get("alpha") == settings.adapter.get("alpha")):
        load_initial_weights(model, path)
        return
    merged = _build_as_trained(settings, stage, path)
    load_model(merged, path)
    merge_updates(merged)
    load_initial_state(model, merged.state_dict(), path)


def read_stage(checkpoint: dict[str, Any]) -> DictConfig:
    """Return the configuration of the stage that a checkpoint was written in."""
    stored = open_stored(extract_run(checkpoint).config)
    return find_stage(stored, TrainingProgress.from_checkpoint(checkpoint).stage).config


def _build_as_trained(settings: Settings, stage: DictConfig, path: Path) -> AnyModel:
    """Build the model of a stage that begins with the adapter of the stage of a checkpoint."""
    foreign: Any = OmegaConf.to_container(OmegaConf.masked_copy(stage, ["adapter", "recurrent"]), resolve=True)
    try:
        with building.trusting(settings.trust):
            building.check_values(foreign)
    except InputError as error:
        raise InputError(f"training.init={path}: {error}; trust=true if you trust this file") from error
    parts = OmegaConf.create(foreign)
    with torch.random.fork_rng(devices=()):
        return builders.build_model(replace(settings, adapter=parts.get("adapter"), recurrent=parts.get("recurrent")))
