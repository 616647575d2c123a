"""Networks as they are, those of libraries and of one's own, whose features embed images without a training by dml."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig
from torch import Tensor, nn

from dml.inference.model_settings import ModelSettings
from dml.models.embedding import SIZE_ERRORS, EmbeddingModel
from dml.run.builders import use_pooled_features
from dml.run.building import build
from dml.run.config_folders import compose_training, list_network_overrides, quote
from dml.run.given import giving
from dml.run.stored import resolve_parts
from dml.runtime.errors import InputError, check_whole, show


def build_pretrained(name: str, image_size: int, weights: str | None) -> tuple[EmbeddingModel, ModelSettings]:
    """Build a pretrained network by a name of ``conf/model`` or timm, whose pooled features embed images."""
    check_whole("image_size", image_size, 1)
    if not isinstance(name, str):
        raise InputError(f"name={show(name)}: must be a text; ImageEmbedder.from_module takes a module")
    words = [*list_network_overrides(name), *([] if weights is None else [f"model.backbone.weights={quote(weights)}"])]
    config = _compose(image_size, words)
    try:
        with torch.random.fork_rng(devices=()):
            return _embed_by_features(config, name)
    except InstantiationException as error:
        raise InputError(str(error.__cause__ or error)) from error


def wrap_module(
    module: nn.Module, image_size: int, mean: Sequence[float], std: Sequence[float], name: str | None
) -> tuple[EmbeddingModel, ModelSettings]:
    """Copy a module of the user's own into a model, see `dml.ImageEmbedder.from_module`."""
    if not isinstance(module, nn.Module):
        raise InputError(f"module={show(module)}: must be a built nn.Module; dml.pretrained takes names")
    check_whole("image_size", image_size, 1)
    kind, size = type(module).__name__, (2, 3, image_size, image_size)
    network = deepcopy(module).float().cpu().eval()
    try:
        with torch.inference_mode():
            embeddings = network(torch.zeros(size))
    except (*SIZE_ERRORS, TypeError) as error:
        line = " ".join(str(error).split())
        raise InputError(f"image_size={image_size}: {kind} can't take images {size} ({line})") from error
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or len(embeddings) != 2:
        result = f"shape {(*embeddings.shape,)}" if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise InputError(f"module: {kind} gives {result} for images {size}, expected embeddings (2, D)")
    config = _compose(image_size, ["model=timm"])
    config.model.backbone = {
        "_target_": "dml.models.backbone.Backbone",
        "network": {"_target_": "dml.run.given.take", "part": "module", "name": kind},
        "mean": _check_channels("mean", mean, lambda value: 0 <= value <= 1),
        "std": _check_channels("std", std, lambda value: 0 < value <= 1),
        "channels_last": False,  # the digits of the module itself
    }
    with giving({"module": network}):
        return _embed_by_features(config, name or kind)


def _check_channels(name: str, values: Any, is_possible: Callable[[float], bool]) -> list[float]:
    """Return the values of the three channels, in units of pixels from 0 to 1."""
    try:
        numbers = [*map(float, values)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 3 or not all(map(is_possible, numbers)):
        raise InputError(f"{name}={show(values)}: must be three numbers for pixels from 0 to 1, not 255")
    return numbers


def _compose(image_size: int, words: Sequence[str]) -> DictConfig:
    return compose_training(["transform=imagenet", f"transform.size={image_size}", *words])


def _embed_by_features(config: DictConfig, name: str) -> tuple[EmbeddingModel, ModelSettings]:
    """Build a model whose one head returns the backbone's pooled features."""
    use_pooled_features(config)
    # there was no training, so the settings say nothing of a data set, a loss or a test
    parts = resolve_parts(config, [str(key) for key in config if key not in ("model", "transform", "data")])
    return build(config.model), ModelSettings(parts, name)
