"""What a trained model was made of and trained with, in plain values."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from dml.data.images import ImageLimits
from dml.data.transforms import Pipeline
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_crops_transform, build_embedding_model, list_decisive, without_weights
from dml.run.building import build, check_values, trusting
from dml.run.settings import Settings, read_settings
from dml.runtime.errors import InputError


@dataclass(frozen=True)
class ModelSettings:
    """The configuration of a trained model, and facts about its training."""

    config: Mapping[str, Any]  # of the training, its interpolations resolved; of its parts, those that are saved
    name: str  # for texts, such as "tf_efficientnet_lite0"
    training: Mapping[str, Any] = field(default_factory=dict)  # facts such as the step of the checkpoint, see `loading`
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the run's test, by name; empty without one
    class_names: tuple[str, ...] = ()  # classes that the model was trained on; empty if they aren't known
    val_class_names: tuple[str, ...] = ()  # those on which its checkpoint and thresholds were chosen
    picture: bytes | None = field(default=None, repr=False)  # PNG of test queries; saving an index replaces the file
    is_trusted: bool = False  # whether the configuration may build objects that dml doesn't know

    @cached_property
    def seen_classes(self) -> frozenset[str]:
        """The names of the classes that the model was trained or validated on."""
        return frozenset((*self.class_names, *self.val_class_names))

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
        return list_decisive(self.config)

    def build_transform(self, views: int = 1) -> Pipeline:
        """Build the preprocessing of the run's test; with several views, it returns (V, 3, h, w)."""
        settings = read_settings(self._compose(evaluation={"crops": views}), Settings)
        with self.building():
            crops = build_crops_transform(settings)
            transform = build(settings.transform.test) if crops is None else crops
        return transform if isinstance(transform, Pipeline) else Pipeline([transform])

    def build_model(self, *, has_adapter: bool = False, weights: str | None = None) -> EmbeddingModel:
        """Build the network with its heads, and perhaps its adapter; its weights are random but for those of a file."""
        model = without_weights(self.config["model"])
        if weights is not None:
            model["backbone"]["weights"] = weights
        config = self._compose(model=model, adapter=self.config.get("adapter") if has_adapter else None)
        with self.building():
            return build_embedding_model(read_settings(config, Settings))

    def check(self, place: object) -> None:
        """Make sure that building model and preprocessing runs no unknown code, unless the files are trusted."""
        transform = {"test": self.config["transform"]["test"]}
        parts = {"model": self.config["model"], "transform": transform, "adapter": self.config.get("adapter")}
        if not self.is_trusted and "${" in json.dumps(self.config, default=str):
            raise InputError(f"{place}: its settings hold an interpolation, which dml resolves before it saves them")
        try:
            with trusting(self.is_trusted):
                check_values(parts)
        except InputError as error:
            line = f"{place}: {error}; trust=True, or --trust of a command, if you trust these files"
            raise InputError(line) from error

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build the objects of a file in the ``with`` statement; what they refuse is one line, unless it is trusted."""
        with trusting(self.is_trusted):
            try:
                yield
            except InstantiationException as error:
                if self.is_trusted:
                    raise
                reason = " ".join(str(error.__cause__ or error).split())
                raise InputError(f"the settings of the model can't be used: {reason}") from error

    def _compose(self, **parts: Any) -> DictConfig:
        config = {"model": self.config["model"], "transform": self.config["transform"]}
        return OmegaConf.create(deepcopy(config | parts))
