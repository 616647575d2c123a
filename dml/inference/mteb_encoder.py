"""A model as mteb's encoder of images, so that ``mteb.evaluate`` tests it."""

from typing import Any

import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta
from numpy.typing import NDArray

from dml.inference.embedder import Embedder
from dml.runtime.errors import InputError


class MtebEncoder(AbsEncoder):  # type: ignore[misc]  # its types are not read, see pyproject.toml
    """A model that mteb's tasks of images can call; `ImageEmbedder.as_mteb` makes one."""

    def __init__(self, model: Embedder) -> None:
        self.model = model
        facts = {
            "name": f"dml/{model.settings.name}",  # mteb wants a slash in it
            "revision": model.fingerprint,
            "modalities": ["image"],
            "embed_dim": model.dimension,
        }
        self.mteb_model_meta = ModelMeta.create_empty(facts)

    def encode(self, inputs: Any, **_: Any) -> NDArray[np.float32]:
        """Embed the images of a task, PIL images under the key "image" of the loader's batches. -> (N, D) float32"""
        parts = []
        for batch in inputs:
            if {*batch} & {"text", "audio", "video"} or "image" not in batch:
                raise InputError(f"mteb: a task of {', '.join(sorted(batch))}; this model embeds images alone")
            parts.append(self.model.embed(batch["image"]))
        return np.concatenate(parts)
