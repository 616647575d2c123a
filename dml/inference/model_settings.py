"""What a trained model was made of and trained with, in plain values."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from dml.data.image_files.limits import ImageLimits
from dml.data.transforms import Pipeline
from dml.evaluation.geometry import choose_ball
from dml.models.embedding import EmbeddingModel
from dml.ops.configuration.targets import unknown_targets
from dml.ops.errors import InputError
from dml.ops.poincare import Ball
from dml.run.model_builders import build_crops_transform, build_embedding_model

DECISIVE_PARTS = ("model", "transform")
"""The parts of a configuration that, beside the weights, decide an image's embedding."""

SAVED_PARTS = (
    *DECISIVE_PARTS,
    "adapter",
    "geometry",
    "data",
    "dataset",
    "loss",
    "sampler",
    "optimizer",
    "scheduler",
    "trainer",
    "evaluation",
)
"""The parts of a configuration that are kept with a model, beside the seed."""


@dataclass(frozen=True)
class ModelSettings:
    """The configuration of a trained model, and facts about its training.

    Args:
        config: configuration of the training, its interpolations resolved; of its parts, `SAVED_PARTS` and "seed".
        name: name of the model for texts, such as "tf_efficientnet_lite0".
        training: facts about the training, such as the step of the checkpoint; see `dml.inference.loading`.
        metrics: the metrics of the run's test, by name; empty if it wasn't tested.
        class_names: names of the classes that the model was trained on; empty if they aren't known.
        picture: PNG file of some test queries with their nearest neighbours; None if there is none. It is in memory
            because the file may be gone when the model is saved: saving an index replaces that of its old version.
    """

    config: Mapping[str, Any]
    name: str
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    picture: bytes | None = field(default=None, repr=False)

    @property
    def limits(self) -> ImageLimits:
        """How images are read, ``data.max_pixels``, ``data.background`` and so on."""
        return ImageLimits.from_settings(self.config["data"])

    @property
    def batch_size(self) -> int:
        """The number of images in a batch of the run's test."""
        return int(self.config["data"]["eval_batch_size"])

    @property
    def views(self) -> int:
        """The number of views of each image in the run's test, ``evaluation.crops``."""
        return int((self.config.get("evaluation") or {}).get("crops", 1))

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that, beside the weights, decide an image's embedding."""
        model = {key: value for key, value in self.config["model"].items() if key != "heads"}
        ball = self.ball
        geometry = {"geometry": ball._asdict()} if ball else {}
        views = {"views": self.views} if self.views > 1 else {}
        color = self.limits.color
        background = {"background": color} if color != ImageLimits().color else {}
        test = {"transform": self.config["transform"]["test"]}
        return {"model": _without_weights(model), **test, **geometry, **views, **background}

    @property
    def ball(self) -> Ball | None:
        """The Poincare ball in which embeddings are compared; None compares them by cosine."""
        return choose_ball(self.config.get("geometry"), self.config.get("loss", {}))

    def build_transform(self, views: int = 1) -> Pipeline:
        """Build the preprocessing of the run's test.

        Args:
            views: number of views of each image; with more than one, the transform returns (V, 3, h, w).

        Raises:
            InputError: if there are no crops of so many views.
        """
        config = self._compose(evaluation={"crops": views})
        crops = build_crops_transform(config)
        transform = instantiate(config.transform.test) if crops is None else crops
        return transform if isinstance(transform, Pipeline) else Pipeline([transform])

    def build_model(self) -> EmbeddingModel:
        """Build the network with its heads; its weights are random until those of the training are loaded."""
        model: EmbeddingModel = instantiate(self._compose(model=_without_weights(self.config["model"])).model)
        return model

    def build_trained_model(self, *, lacks_weights: bool, weights: str | None = None) -> EmbeddingModel:
        """Build the network as its training did, with the adapter.

        Args:
            lacks_weights: whether the network gets its pretrained weights, since its checkpoint lacks those that the
                adapter left as they were.
            weights: file of the pretrained weights; None takes those that the training named.
        """
        model = deepcopy({**self.config["model"]}) if lacks_weights else _without_weights(self.config["model"])
        if lacks_weights and weights is not None:
            model["backbone"]["weights"] = weights
        return build_embedding_model(self._compose(model=model, adapter=self.config.get("adapter")))

    def check_targets(self, place: object, *, trust: bool) -> None:
        """Make sure that building the model and its preprocessing runs no unknown code.

        Args:
            place: path of the file or folder of the settings, for the error line.
            trust: whether any code may run.

        Raises:
            InputError: if an object isn't known to be safe and ``trust`` is false.
        """
        used = {"heads": self.config["model"].get("head"), "adapter": self.config.get("adapter")}
        unknown = list(unknown_targets(self.decisive | used))
        if unknown and not trust:
            described = ", ".join(f"{path}={value}" for path, value in unknown)
            raise InputError(
                f"{place}: {described} is not known and could run any code; trust=True, or --trust of a command, "
                "if you trust these files"
            )

    def _compose(self, **parts: Any) -> DictConfig:
        composed = {name: self.config[name] for name in DECISIVE_PARTS} | parts
        return OmegaConf.create(deepcopy(composed))


def _without_weights(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model without the file of the weights that its training began with."""
    copied: dict[str, Any] = deepcopy({**model})
    backbone = copied.get("backbone")
    if isinstance(backbone, dict) and "weights" in backbone:
        backbone["weights"] = None
    return copied
