"""Images beside the tested ones, which the tested model embeds too: distractors, and the images of pairs."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from pytorch_lightning import Trainer

from dml.data.image_files.contents import read_stamps
from dml.data.image_listing import list_folder, list_images
from dml.data.table import ImageTable
from dml.run import builders
from dml.run.settings import Settings
from dml.runtime.files import replacing
from dml.training.embedders import CHOSEN_HEADS, Embedded, ModelEmbedder

PART = 2**14
"""The number of images whose embeddings are in one file, which a killed process loses at most."""


def embed_further_images(settings: Settings, trainer: Trainer, embedder: ModelEmbedder, images: ImageTable) -> Embedded:
    """Embed the images of the split "test" of a table; those that can't be read are left out."""
    uncached = replace(settings, data=replace(settings.data, cache=None))
    trainer.test(embedder, builders.build_evaluation_data(uncached, images), verbose=False)
    return embedder.embedded


def embed_distractors(
    settings: Settings, trainer: Trainer, embedder: ModelEmbedder, folder: Path, state: Path, fingerprint: str
) -> Path:
    """Embed the images of a folder into .npy files, all processes together -> the folder of these files.

    Its name tells the model and the images, by the size and the time of each file. A file that is there is kept. Of a
    folder that holds tar files, as the distractors of ILIAS come, their images and those beside them are embedded.

    Args:
        settings: settings of the tested stage.
        trainer: trainer whose processes embed.
        embedder: model that embeds.
        folder: folder of the images.
        state: folder that gets the folder of the files.
        fingerprint: fingerprint of the model.
    """
    archives = sorted(folder.glob("*.tar"))
    paths = [path for archive in archives for path in list_images(archive)]
    paths += list_folder(folder) if archives else list_images(folder)
    identity = sha256(f"{fingerprint} {settings.trainer.precision} {settings.trainer.limit_test_batches}".encode())
    identity.update("\0".join(paths).encode(errors="surrogateescape") + read_stamps(paths).tobytes())
    target = state / f"images-{identity.hexdigest()[:32]}"
    for start in range(0, len(paths), PART):
        if not (file := target / f"{start:012}.npy").exists():
            part = np.array(paths[start : start + PART])
            labels, split = np.zeros((len(part), 1), dtype=np.int64), np.full(len(part), "test")
            images = ImageTable(part, labels, split, ("label",), source=str(folder))
            embedded = embed_further_images(settings, trainer, embedder, images)
            if trainer.is_global_zero:
                target.mkdir(parents=True, exist_ok=True)
                with replacing(file) as partial, partial.open("wb") as opened:
                    np.save(opened, embedded.embeddings[CHOSEN_HEADS].numpy())
        trainer.strategy.barrier()
    return target
