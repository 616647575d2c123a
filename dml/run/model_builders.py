"""The builders of a model and of its views, and its fingerprint; without Lightning, which models in use don't load."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from torch import Tensor

from dml.data.images import ImageLimits
from dml.data.transforms import Crops, Pipeline, and_mirrored
from dml.models.embedding import SIZE_ERRORS, EmbeddingModel
from dml.models.recurrent import AnyModel
from dml.models.weights import add_tensors
from dml.run.building import build, import_object
from dml.run.settings import Settings
from dml.runtime.errors import InputError

CROPS = {5: "torchvision.transforms.v2.FiveCrop", 10: "torchvision.transforms.v2.TenCrop"}


def build_model(settings: Settings) -> AnyModel:
    """Build the backbone with its heads and its ``adapter``, and with ``recurrent`` the network of neighborhoods."""
    built: AnyModel = build_embedding_model(settings)
    if settings.recurrent is not None:
        built = build(settings.recurrent)(built, build_embedding_model(settings))
    return built


def build_embedding_model(settings: Settings) -> EmbeddingModel:
    """Build the backbone with its heads, and change it by ``adapter``."""
    built: EmbeddingModel = build(settings.model)
    if settings.adapter is not None:
        build(settings.adapter)(built)
    return built


@torch.inference_mode()
def count_features(backbone: DictConfig, image_size: int) -> int:
    """Build a backbone, and return the number of its pooled features."""
    network = build(backbone).eval()
    try:
        features: Tensor = network.run_blank(image_size)[0]
    except SIZE_ERRORS as error:
        raise InputError(f"image_size={image_size}: not for the network ({error})".replace("\n", " ")) from error
    return int(features.flatten(1).shape[1])


def use_features(model: DictConfig, dimension: int) -> None:
    """Let the model of a configuration have one head, which returns the backbone's pooled features (B, dimension)."""
    with open_dict(model):
        model.heads, model.embed_dim, model.taps = ["H"], dimension, {"H": "pooled"}
        model.head = {"H": {"_target_": "dml.models.heads.RawHead", "_partial_": True}}


def build_crops_transform(settings: Settings) -> Pipeline | None:
    """Build the transform of a test that takes several views of each image, ``evaluation.crops``; else None."""
    crops, plain = settings.evaluation.crops, build(settings.transform.test)
    if crops == 1:
        return None
    steps = plain.steps if isinstance(plain, Pipeline) else (plain,)
    if crops == 2:
        return Pipeline([*steps, Crops(and_mirrored)])
    if crops not in CROPS:
        raise InputError(f"evaluation.crops={crops}: 1, 2, 5 or 10 views of each image")
    last: Any = steps[-1]
    if not isinstance(last, import_object("torchvision.transforms.v2.CenterCrop")):
        raise InputError(
            f"evaluation.crops={crops}: transform.test ends with {type(last).__name__}, not with a CenterCrop that "
            "they could replace; evaluation.crops=2, the image and its mirror image, would do"
        )
    return Pipeline([*steps[:-1], Crops(import_object(CROPS[crops])(last.size))])


def list_decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a trained model that, beside the weights, decide an image's embedding."""
    model = {key: value for key, value in config["model"].items() if key != "heads"}
    evaluation, limits = config.get("evaluation") or {}, ImageLimits.from_settings(config["data"])
    views = int(evaluation.get("crops", 1))
    more_views = {"views": views} if views > 1 else {}
    background = {"background": limits.color} if limits.color != ImageLimits().color else {}
    test = {"transform": config["transform"]["test"]}
    return {"model": without_weights(model), **test, **more_views, **background}


def without_weights(node: Any) -> Any:
    """Return the settings of a model without the files of weights that its training began with."""
    if isinstance(node, Mapping):
        return {key: None if key == "weights" else without_weights(value) for key, value in node.items()}
    return [without_weights(value) for value in node] if isinstance(node, list) else node


def make_fingerprint(decisive: Mapping[str, Any], model: AnyModel, *, heads: Sequence[str] | None = None) -> str:
    """Return the identifier of a model's vectors by its weights, `list_decisive` and heads (None: chosen)."""
    described = {**decisive, "heads": model.chosen_heads if heads is None else heads}
    digest = hashlib.sha256()
    digest.update(json.dumps(described, sort_keys=True).encode())
    add_tensors(digest, sorted(model.state_dict().items()))
    return digest.hexdigest()[:16]
