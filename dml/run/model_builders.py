"""The builders of a model and of the views that it embeds; they need no Lightning, which models in use don't load."""

from typing import Any

from hydra.utils import get_class, instantiate
from omegaconf import DictConfig

from dml.data.transforms import Crops, Pipeline, and_mirrored
from dml.models.embedding import EmbeddingModel
from dml.models.recurrent import AnyModel
from dml.ops.errors import InputError

CROPS = {5: "torchvision.transforms.v2.FiveCrop", 10: "torchvision.transforms.v2.TenCrop"}


def build_model(config: DictConfig) -> AnyModel:
    """Build the backbone with its heads and its ``adapter``, and with ``recurrent`` the network of neighbourhoods."""
    built: AnyModel = build_embedding_model(config)
    if config.recurrent is not None:
        built = instantiate(config.recurrent)(built, build_embedding_model(config))
    return built


def build_embedding_model(config: DictConfig) -> EmbeddingModel:
    """Build the backbone with its heads, and change it as ``adapter`` says."""
    built: EmbeddingModel = instantiate(config.model)
    if config.get("adapter") is not None:  # configurations of older versions lack it
        instantiate(config.adapter)(built)
    return built


def build_crops_transform(config: DictConfig) -> Pipeline | None:
    """Build the test's transform if it takes several views of each image: ``transform.test`` with ``evaluation.crops``.

    Raises:
        InputError: if there are no crops of so many views, or the transform has no place for them.
    """
    crops, plain = config.evaluation.crops, instantiate(config.transform.test)
    if crops == 1:
        return None
    steps = plain.steps if isinstance(plain, Pipeline) else (plain,)
    if crops == 2:
        return Pipeline([*steps, Crops(and_mirrored)])
    if crops not in CROPS:
        raise InputError(f"evaluation.crops={crops}: 1, 2, 5 or 10 views of each image")
    last: Any = steps[-1]
    center_crop: Any = get_class("torchvision.transforms.v2.CenterCrop")
    if not isinstance(last, center_crop):
        raise InputError(
            f"evaluation.crops={crops}: transform.test ends with {type(last).__name__}, not with a CenterCrop that "
            "they could replace; evaluation.crops=2, the image and its mirror image, would do"
        )
    return Pipeline([*steps[:-1], Crops(instantiate({"_target_": CROPS[crops], "size": last.size}))])
