"""Features of a model's backbone as a test computes them, kept in the data set's cache folder for later commands."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from dml.data.prepared.cache import CacheFolder
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_evaluation_data
from dml.run.loop import build_testing_trainer
from dml.run.prepare_job import make_cache_folder
from dml.run.settings import Settings
from dml.runtime.errors import InputError
from dml.runtime.text import warn
from dml.training.frozen import RAW, FeatureCache, FeatureEmbedder
from dml.training.hardware import uses_cuda


class FeatureSource:
    """Computes features of images with the transform of a test, or takes them from the data set's cache folder.

    Args:
        settings: settings of the command, with the data, the transform and the trainer.
        model_config: configuration of the model, which may differ from that in ``settings``.
        model: network with its heads; the features follow its present weights.
        folder: cache folder of the data set, which exists; None for no files.
    """

    def __init__(
        self, settings: Settings, model_config: DictConfig, model: EmbeddingModel, folder: CacheFolder | None
    ) -> None:
        self.settings = settings
        self.model_config = model_config
        self.model = model
        self.cache = FeatureCache(folder, warn)

    def load_raw(self, table: ImageTable, *, with_inputs: bool = False) -> Tensor:
        """Return the L2-normalized features (N, F) of the backbone; NaN for images that can't be read.

        ``with_inputs`` computes the head inputs in the same pass, to be loaded later.
        """
        heads = [*self.model.heads] if with_inputs and self.settings.evaluation.crops == 1 else []
        return self._load(table, [RAW, *heads])[RAW]

    def load_inputs(self, table: ImageTable) -> dict[str, Tensor]:
        """Return the inputs (N, ...) of each head for the images of a table; NaN for images that can't be read."""
        return self._load(table, [*self.model.heads])

    def _load(self, table: ImageTable, names: Sequence[str]) -> dict[str, Tensor]:
        described = {name: self._describe(name) for name in names}
        return self.cache.load(table, self.model.backbone, described, self._compute)

    def _describe(self, name: str) -> dict[str, Any]:
        """Return all that decides features of a name, beside the images and the weights of the backbone."""
        described = {
            "backbone": _to_plain(self.model_config.backbone),
            "transform": _to_plain(self.settings.transform.test),
            "precision": self.settings.trainer.precision,
            "background": self.settings.data.limits.color,
        }
        if name == RAW:
            return described | {"crops": self.settings.evaluation.crops}
        taps = self.model_config.taps
        tap = name if taps is None else taps[name]  # the network's stages have the names of the heads
        return described | {"tap": tap, "head": _to_plain(self.model_config.head[name])}

    def _compute(self, images: ImageTable, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
        reading = self.settings
        if reading.data.num_workers == "auto" and not uses_cuda(reading.trainer.accelerator):
            # large photographs take longer to decode than to embed
            reading = replace(reading, data=replace(reading.data, num_workers=os.cpu_count() or 1))
        if [*names] != [RAW]:
            reading = replace(reading, evaluation=replace(reading.evaluation, crops=1))
        trainer = build_testing_trainer(self.settings, devices=1, num_nodes=1, strategy="auto", limit_test_batches=1.0)
        embedder = FeatureEmbedder(self.model, names, len(images))
        device = next(self.model.parameters()).device
        trainer.test(embedder, build_evaluation_data(reading, images), verbose=False)
        self.model.to(device)  # the end of the test takes it to the CPU, also during a training on a GPU
        return embedder.embedded.embeddings, embedder.embedded.rows


def _to_plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def build_feature_source(settings: Settings, model: EmbeddingModel) -> FeatureSource:
    """Build the source of the features that a training of the heads alone takes."""
    if (processes := build_testing_trainer(settings).world_size) > 1:
        raise InputError(f"training.frozen=true: trains in one process, not in {processes}; trainer.devices=1")
    folder = None if settings.data.cache is None else make_cache_folder(settings)
    return FeatureSource(settings, settings.model, model, folder)
