"""Features of a model's backbone as a test computes them, kept in the data set's cache folder for later commands."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.cache import CacheFolder
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_evaluation_data
from dml.run.loop import build_testing_trainer
from dml.run.prepare_job import make_cache_folder
from dml.runtime.errors import InputError
from dml.runtime.text.console import warn
from dml.training.frozen import RAW, FeatureCache, FeatureEmbedder, HeadInputs
from dml.training.hardware import uses_cuda


class FeatureSource:
    """Computes features of images with the transform of a test, or takes them from the data set's cache folder.

    Args:
        config: configuration of the command, with the data, the transform and the trainer.
        model_config: configuration of the model, which may differ from that in ``config``.
        model: network with its heads; the features follow its present weights.
        folder: cache folder of the data set, which exists; None for no files.
    """

    def __init__(
        self, config: DictConfig, model_config: DictConfig, model: EmbeddingModel, folder: CacheFolder | None
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.model = model
        self.cache = FeatureCache(folder, warn)

    def load_raw(self, table: ImageTable, *, with_inputs: bool = False) -> Tensor:
        """Return the L2-normalized features (N, F) of the backbone; NaN for images that can't be read.

        Args:
            table: images of any splits.
            with_inputs: whether the head inputs are computed in the same pass, to be loaded later.
        """
        heads = [*self.model.heads] if with_inputs and self.config.evaluation.crops == 1 else []
        return self._load(table, [RAW, *heads])[RAW]

    def load_inputs(self, table: ImageTable) -> HeadInputs:
        """Return the head inputs of the images of a table."""
        return HeadInputs.pack(self._load(table, [*self.model.heads]))

    def _load(self, table: ImageTable, names: Sequence[str]) -> dict[str, Tensor]:
        settings = {name: self._describe(name) for name in names}
        return self.cache.load(table, self.model.backbone, settings, self._compute)

    def _describe(self, name: str) -> dict[str, Any]:
        """Return all that decides features of a name, beside the images and the weights of the backbone."""
        settings = {
            "backbone": _to_plain(self.model_config.backbone),
            "transform": _to_plain(self.config.transform.test),
            "precision": self.config.trainer.precision,
            "background": ImageLimits.from_settings(self.config.data).color,
        }
        if name == RAW:
            return settings | {"crops": self.config.evaluation.crops}
        taps = self.model_config.taps
        tap = name if taps is None else taps[name]  # the network's stages have the names of the heads
        return settings | {"tap": tap, "head": _to_plain(self.model_config.head[name])}

    def _compute(self, images: ImageTable, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
        reading = self.config.copy()
        if reading.data.num_workers == "auto" and not uses_cuda(reading.trainer.accelerator):
            reading.data.num_workers = os.cpu_count() or 1  # large photographs take longer to decode than to embed
        if [*names] != [RAW]:
            reading.evaluation.crops = 1
        trainer = build_testing_trainer(self.config, devices=1, num_nodes=1, strategy="auto", limit_test_batches=1.0)
        embedder = FeatureEmbedder(self.model, names, len(images))
        device = next(self.model.parameters()).device
        trainer.test(embedder, build_evaluation_data(reading, images), verbose=False)
        self.model.to(device)  # the end of the test takes it to the CPU, also during a training on a GPU
        return embedder.embedded.embeddings, embedder.embedded.rows


def _to_plain(node: DictConfig) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def build_feature_source(config: DictConfig, model: EmbeddingModel) -> FeatureSource:
    """Build the source of the features that a training of the heads alone takes.

    Raises:
        InputError: if several processes would train, or the cache folder can't be written to.
    """
    if (processes := build_testing_trainer(config).world_size) > 1:
        raise InputError(f"training.frozen=true: trains in one process, not in {processes}; trainer.devices=1")
    folder = None if config.data.cache is None else make_cache_folder(config)
    return FeatureSource(config, config.model, model, folder)


def check_frozen(config: DictConfig) -> None:
    """Make sure that ``frozen`` is true or false, and that no option contradicts it.

    Raises:
        InputError: if it is something else, or an option needs the backbone in training.
    """
    for option, off in (("recurrent", "none"), ("training.compile", "null"), ("adapter", "none")):
        if config.training.frozen and OmegaConf.select(config, option):
            raise InputError(f"training.frozen=true: {option} needs the whole network in each step; {option}={off}")
