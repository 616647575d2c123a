"""Pretrained networks as they are: their features embed images before any training."""

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from omegaconf import DictConfig

from dml.inference.image_embedder import ImageEmbedder
from dml.inference.model_settings import ModelSettings
from dml.run.building import build
from dml.run.config_folders import CONF
from dml.run.settings import list_keys
from dml.run.stages import resolve_parts
from dml.runtime.errors import InputError


def pretrained(name: str, *, image_size: int = 224, weights: str | None = None, device: str = "auto") -> ImageEmbedder:
    """Open a pretrained network, whose pooled features embed images: no head, and no training.

    >>> import dml
    >>> dml.pretrained("tf_efficientnet_lite0").dimension  # doctest: +SKIP
    1280

    Args:
        name: choice of ``conf/model``, or any other name of timm.
        image_size: side of the images in pixels, which are resized as ``transform=imagenet`` does.
        weights: file of the weights; None takes those that the choice names, of a package or a download.
        device: device that embeds, such as "cpu" or "cuda"; "auto" takes a GPU if there is one.

    Raises:
        InputError: if no network has this name, or the weights can't be had.
    """
    is_choice = (CONF / "model" / f"{name}.yaml").exists()
    words = [f"model={name}"] if is_choice else ["model=timm", f"model.backbone.name={name}"]
    words += [] if weights is None else [f"model.backbone.weights={weights}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=["transform=imagenet", f"transform.size={image_size}", *words])
    try:
        with torch.random.fork_rng(devices=()):
            _use_features(config)
            model = build(config.model)
    except InstantiationException as error:
        raise InputError(str(error.__cause__ or error)) from error
    parts = resolve_parts(config, [str(key) for key in config if key not in list_keys("is_saved")])
    settings = ModelSettings(parts, name, {"step": 0})
    return ImageEmbedder(model, settings, device=device)


def _use_features(config: DictConfig) -> None:
    """Let a model have one head, which returns the pooled features."""
    network = build(config.model.backbone).eval()
    with torch.inference_mode():
        size = network(torch.zeros(1, 3, config.transform.size, config.transform.size))[0].flatten(1).shape[1]
    config.model.heads, config.model.embed_dim, config.model.taps = ["H"], size, {"H": "pooled"}
    config.model.head = {"H": {"_target_": "dml.models.heads.RawHead", "_partial_": True}}
