"""The network by whose embeddings an audit compares images: a backbone as it is, or that of a trained run."""

from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor

from dml.commands.checked_images import build_seeded_model
from dml.data.prepared.cache import CacheFolder
from dml.data.table import TEST_SPLITS, ImageTable
from dml.models.embedding import EmbeddingModel
from dml.run.builders import build_model
from dml.run.feature_source import FeatureSource
from dml.run.settings import AuditSettings, Settings, read_settings
from dml.run.stages import find_stage
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint
from dml.training.frozen import unpack_inputs

GROUPS = (("train",), ("val",), TEST_SPLITS)
"""Splits that are embedded together; dml inspect keeps the features of the same groups."""
BLOCK = 4096


@dataclass(frozen=True)
class AuditNetwork:
    """A network that embeds the images of an audit.

    Args:
        model: the network that embeds.
        model_config: configuration of the network.
        is_trained: whether the network comes from a checkpoint: then its heads embed, otherwise its backbone.
        description: the network in words, for the page.
    """

    model: EmbeddingModel
    model_config: DictConfig
    is_trained: bool
    description: str

    def embed(self, settings: Settings, table: ImageTable, folder: CacheFolder) -> Tensor:
        """Return the L2-normalized embeddings (N, D) of images; the features of the backbone are kept in the folder.

        Args:
            settings: settings of the command, with the data, the transform and the trainer.
            table: images that can be read.
            folder: cache folder of the data set.
        """
        source = FeatureSource(settings, self.model_config, self.model, folder)
        embeddings: Tensor | None = None
        for splits in GROUPS:
            rows = table.rows(*splits)
            if not len(rows):
                continue
            part = table.take(rows)
            embedded = self._embed_by_heads(source, part) if self.is_trained else source.load_raw(part)
            if embeddings is None:
                embeddings = torch.empty(len(table), embedded.shape[1])
            embeddings[torch.from_numpy(rows)] = embedded
        assert embeddings is not None
        return embeddings

    @torch.no_grad()
    def _embed_by_heads(self, source: FeatureSource, table: ImageTable) -> Tensor:
        inputs = source.load_inputs(table)
        self.model.eval().cpu()
        blocks = []
        for values in torch.split(inputs.values, BLOCK):
            embeddings = self.model.embed_inputs(unpack_inputs(values, inputs.shapes))
            blocks.append(self.model.concatenate({head: embeddings[head] for head in self.model.chosen_heads}))
        return torch.cat(blocks)


def build_backbone_network(settings: Settings) -> AuditNetwork:
    """Build the backbone of ``model``, as it is before any training.

    Raises:
        InputError: if weights can't be had.
    """
    model = build_seeded_model(settings.model, settings.seed)
    name = settings.model.backbone.get("name") or str(settings.model.backbone._target_).rpartition(".")[2]
    return AuditNetwork(model, settings.model, is_trained=False, description=f"features of {name} as it was pretrained")


def build_network(config: DictConfig) -> AuditNetwork:
    """Build the network that ``checkpoint`` names, or else the backbone of ``model``.

    Raises:
        InputError: if the checkpoint can't be used, or weights can't be had.
    """
    settings = read_settings(config, AuditSettings)
    if not settings.checkpoint:
        return build_backbone_network(settings)
    path = expand_home(settings.checkpoint)
    checkpoint = read_checkpoint(path, lazily=True)
    stage = find_stage(config, TrainingProgress.from_checkpoint(checkpoint).stage).settings
    if not lacks_weights(checkpoint) and "weights" in stage.model.backbone:
        stage.model.backbone.weights = None
    trained = build_model(stage)
    if not isinstance(trained, EmbeddingModel):
        raise InputError(f"checkpoint={path}: a recurrent network embeds neighborhoods, not images; give another one")
    load_model(trained, path)
    return AuditNetwork(trained, stage.model, is_trained=True, description=f"the network of {_name_run(path)}")


def _name_run(path: Path) -> str:
    return path.absolute().parents[1].name if path.parent.name == "checkpoints" else path.name
