"""Images beside the tested ones, which the tested model embeds too: the images of pairs."""

from dataclasses import replace

from pytorch_lightning import Trainer

from dml.data.table import ImageTable
from dml.run import builders
from dml.run.settings import Settings
from dml.training.embedders import Embedded, ModelEmbedder


def embed_further_images(settings: Settings, trainer: Trainer, embedder: ModelEmbedder, images: ImageTable) -> Embedded:
    """Embed the images of the split "test" of a table; those that can't be read are left out."""
    uncached = replace(settings, data=replace(settings.data, cache=None))
    trainer.test(embedder, builders.build_evaluation_data(uncached, images), verbose=False)
    return embedder.embedded
