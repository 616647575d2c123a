"""A trained run as another run opens it: its settings, its model and the fingerprint of its vectors."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from dml.data.image_files.limits import ImageLimits
from dml.evaluation.geometry import choose_ball
from dml.models.adapters import merge_updates
from dml.models.recurrent import AnyModel
from dml.models.weights import add_tensors
from dml.run import building
from dml.run.model_builders import build_model
from dml.run.settings import Settings, read_settings
from dml.run.stages import find_stage, make_evaluation_config
from dml.run.stored_configuration import extract_configuration, open_stored
from dml.run.tested_checkpoint import find_checkpoint
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint


class TrainedRun(NamedTuple):
    """A run's tested stage and its model, on the CPU, with the fingerprint that the model has in `dml.load`."""

    place: str
    settings: Settings
    model: AnyModel
    fingerprint: str


def open_run(key: str, place: str, *, trust: bool) -> TrainedRun:
    """Open the folder or the checkpoint of a run, which a key names, without a change of torch's random numbers.

    Raises:
        InputError: if there is no run, it is damaged, its vectors aren't compared by cosine, or it names unknown code
            and ``trust`` is false.
    """
    path = expand_home(place)
    if not path.exists():
        raise InputError(f"{key}={printable(place)}: nothing is there; the folder of a run or a checkpoint")
    path = find_checkpoint(RunFolder(path)) if path.is_dir() else path
    checkpoint = read_checkpoint(path, lazily=True)
    stored = open_stored(extract_configuration(checkpoint).config)
    stage = find_stage(stored, TrainingProgress.from_checkpoint(checkpoint).stage)
    config = make_evaluation_config(stage.config, lacks_weights=lacks_weights(checkpoint))
    plain: Any = OmegaConf.to_container(config, resolve=True)
    parts = {part: plain.get(part) for part in ("model", "adapter", "recurrent")}
    try:
        with building.trusting(None if trust else ()):
            building.check_targets(parts | {"transform": {"test": plain["transform"]["test"]}}, "")
    except InputError as error:
        raise InputError(f"{key}={printable(place)}: {error}; trust=true if you trust this file") from error
    decisive, settings = list_decisive(plain), read_settings(config, Settings)
    if "geometry" in decisive:
        raise InputError(f"{key}={printable(place)}: its vectors are compared by Poincare distance; a run with cosine")
    with torch.random.fork_rng(devices=()):
        model = build_model(settings)
    load_model(model, path)
    merge_updates(model)
    described = decisive | {"heads": model.chosen_heads, "geometry": "cosine"}
    return TrainedRun(place, settings, model, make_fingerprint(described, model))


def list_decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a trained model that, beside the weights, decide an image's embedding."""
    model = {key: value for key, value in config["model"].items() if key != "heads"}
    evaluation, color = config.get("evaluation") or {}, ImageLimits.from_settings(config["data"]).color
    ball, views = choose_ball(evaluation.get("geometry"), config.get("loss", {})), int(evaluation.get("crops", 1))
    geometry = {"geometry": ball._asdict()} if ball else {}
    more_views = {"views": views} if views > 1 else {}
    background = {"background": color} if color != ImageLimits().color else {}
    test = {"transform": config["transform"]["test"]}
    return {"model": without_weights(model), **test, **geometry, **more_views, **background}


def without_weights(node: Any) -> Any:
    """Return the settings of a model without the files of weights that its training began with."""
    if isinstance(node, Mapping):
        return {key: None if key == "weights" else without_weights(value) for key, value in node.items()}
    return [without_weights(value) for value in node] if isinstance(node, list) else node


def make_fingerprint(described: Mapping[str, Any], model: AnyModel) -> str:
    """Return the identifier of a model's vectors by its weights, and by `list_decisive`, its heads and its geometry."""
    digest = hashlib.sha256()
    digest.update(json.dumps(described, sort_keys=True).encode())
    add_tensors(digest, sorted(model.state_dict().items()))
    return digest.hexdigest()[:16]
