"""Training of the heads alone, on what a frozen backbone computes once: its features, their data and the learner."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dml.data.contents import read_stamps
from dml.data.dataset import Batch, BatchDataset, Draw, make_unreadable_class_error
from dml.data.prepared.cache import CacheFolder, refuse_links
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.models.weights import add_tensors
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.reading import DamageError, check_zip
from dml.training.data import DataModule, Transform
from dml.training.embedders import Embedded, EmbeddedBatch, Embedder
from dml.training.module import MetricLearner

FORMAT = 5
"""Version of the files of features; it goes up when the features or their storage change."""

Compute = Callable[[ImageTable, Sequence[str]], tuple[Mapping[str, Tensor], Tensor]]
"""Function of a table, whose images are all in the split "test", and of names of features -> the features (R, ...) by
name of the R images that can be read, and the rows (R,) of these images."""


@dataclass
class FeatureCache:
    """Keeps features of images in files ``features-<fingerprint>.npz``, one for each kind of features and each table.

    Features that can't be stored stay in memory: all without a folder, and those of tables with unreadable images.
    ``warn`` is called with a line if a stored file can't be used.
    """

    folder: CacheFolder | None
    warn: Callable[[str], None]
    _memory: dict[str, Tensor] = field(default_factory=dict)

    def load(
        self, table: ImageTable, backbone: nn.Module, settings: Mapping[str, Mapping[str, Any]], compute: Compute
    ) -> dict[str, Tensor]:
        """Return features of all images of a table, stored by an earlier call or else computed and stored.

        Args:
            table: images of any splits.
            backbone: network that computes the features; the fingerprint covers its weights.
            settings: everything else that decides the features of each name, as values that JSON can hold.
            compute: function that computes the features which aren't stored.

        Returns:
            Features (N, ...) float32 by name, on CPU, of each row; NaN for an image that can't be read.
        """
        _, first_rows, image_of_row = np.unique(table.paths, return_index=True, return_inverse=True)
        images = table.take(first_rows.astype(np.int64))
        fingerprints = self._compute_fingerprints(images, backbone, settings)
        features = {name: self._read(fingerprint, len(images)) for name, fingerprint in fingerprints.items()}
        if missing := [name for name in settings if features[name] is None]:
            computed, rows = compute(replace(images, split=np.full(len(images), "test")), missing)
            for name in missing:
                features[name] = self._store(fingerprints[name], computed[name], rows, len(images))
        rows_of_table = torch.from_numpy(image_of_row.reshape(-1))
        return {name: part[rows_of_table] for name, part in features.items() if part is not None}

    def _compute_fingerprints(
        self, images: ImageTable, backbone: nn.Module, settings: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the SHA-256 of what decides the features of each name: settings, weights, and the files."""
        paths = images.paths.tolist()
        names = self.folder.relative_paths(paths) if self.folder else paths
        # size, time and inode: two files that were swapped may have one size and time
        files = list(zip(names, read_stamps(paths)[:, :3].tolist(), strict=True))
        digest = sha256(json.dumps([FORMAT, files]).encode())
        add_tensors(digest, backbone.state_dict().items())
        return {
            name: sha256(json.dumps([digest.hexdigest(), values], sort_keys=True).encode()).hexdigest()
            for name, values in settings.items()
        }

    def _read(self, fingerprint: str, count: int) -> Tensor | None:
        """Read stored features (N, ...) of N images; None if there are none, or they are damaged."""
        if fingerprint in self._memory or self.folder is None:
            return self._memory.get(fingerprint)
        path = self._path(fingerprint)
        refuse_links(self.folder.path)
        if not path.exists():
            return None
        try:
            check_zip(path)
            with np.load(path) as arrays:
                stored, features = arrays["fingerprint"], arrays["features"]
            if stored != fingerprint or features.dtype != np.float32 or features.shape[:1] != (count,):
                raise DamageError("features of other images or weights")
        except (BadZipFile, KeyError, ValueError, EOFError) as error:
            self.warn(f"{path}: damaged ({error}); the features are computed anew")
            return None
        return torch.from_numpy(features)

    def _store(self, fingerprint: str, features: Tensor, rows: Tensor, count: int) -> Tensor:
        """Keep features (R, ...) of some of the N images -> features (N, ...) with NaN for the others."""
        if len(rows) == count and self.folder is not None:
            with replacing(self._path(fingerprint)) as partial, partial.open("wb") as file:
                np.savez(file, fingerprint=np.array(fingerprint), features=features.numpy())
            return features
        self._memory[fingerprint] = features.new_full((count, *features.shape[1:]), torch.nan)
        self._memory[fingerprint][rows] = features
        return self._memory[fingerprint]

    def _path(self, fingerprint: str) -> Path:
        assert self.folder is not None
        return self.folder.path / f"features-{fingerprint[:16]}.npz"


RAW = "raw features"
"""The name of the backbone's own features, beside the head inputs that have the names of the heads."""

COPIES = 3
"""The number of times that head inputs are in memory while they are computed."""


class FeatureEmbedder(Embedder):
    """Computes features of a split that don't change while the heads alone are trained.

    Args:
        model: network with its heads.
        names: heads, for their inputs, and `RAW`, for the backbone's L2-normalized features; of several views of each
            image `RAW` alone.
        count: number of images of the split.
    """

    def __init__(self, model: EmbeddingModel, names: Sequence[str], count: int) -> None:
        super().__init__()
        self.model, self.names, self.count = model, (*names,), count

    def embed_images(self, images: Tensor) -> dict[str, Tensor]:
        """Compute features (B, ...) of images (B, 3, H, W), by name."""
        features, maps = self.model.backbone(images)
        outputs = {RAW: features.flatten(1), **self.model.pool_maps(maps)}
        chosen = {name: outputs[name].float() for name in self.names}
        needed = COPIES * 4 * self.count * sum(part[0].numel() for part in chosen.values())
        if needed > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            raise InputError(
                f"training.frozen=true: the features of {self.count:,} images take {needed / 1e9:,.1f} GB of memory, "
                f"and this machine has {memory / 1e9:,.1f} GB; a PoolHead in model.head needs little"
            )
        return chosen

    def keep_batch(self, embeddings: dict[str, Tensor], rows: Tensor) -> EmbeddedBatch:
        """Return the features of a batch in the machine's memory: those of a split can be larger than a GPU's."""
        return {name: part.cpu() for name, part in embeddings.items()}, rows.cpu()

    def finalize(self, split: Embedded) -> Embedded:
        """L2-normalize `RAW`."""
        normalized = {name: F.normalize(part, dim=1) for name, part in split.embeddings.items() if name == RAW}
        return Embedded(split.embeddings | normalized, split.rows)


class FeatureDataset(BatchDataset):
    """A data set of head inputs with the labels and the rows of their images, indexed by lists of rows or `Draw`s.

    The inputs (N, ...) by head are NaN for images that can't be read; ``on_corrupt`` is that of `ImageDataset`.
    """

    def __init__(self, table: ImageTable, inputs: Mapping[str, Tensor], on_corrupt: str) -> None:
        self.inputs = inputs
        self.labels = torch.from_numpy(table.labels)
        self.is_readable = ~next(iter(inputs.values())).flatten(1)[:, 0].isnan()
        self.rows = torch.arange(len(table))
        if on_corrupt == "replace":
            for row in torch.nonzero(~self.is_readable).flatten().tolist():
                self.rows[row] = self._find_replacement(table, row)

    def _find_replacement(self, table: ImageTable, row: int) -> int:
        is_candidate = self.is_readable & (self.labels[:, 0] == self.labels[row, 0])
        candidates: list[int] = torch.nonzero(is_candidate).flatten().tolist()
        if not candidates:
            class_names = table.names[0] if table.names else ()
            raise make_unreadable_class_error(table.paths[row], int(self.labels[row, 0]), class_names)
        return next((candidate for candidate in candidates if candidate > row), candidates[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int | Draw]) -> Any:
        """Return the inputs (B, ...) of images by head, their labels (B, L), and their rows (B,)."""
        rows = self.rows[[index[0] if isinstance(index, tuple) else index for index in indices]]
        rows = rows[self.is_readable[rows]]
        return {head: part[rows] for head, part in self.inputs.items()}, self.labels[rows], rows

    def collate(self, items: Any) -> Batch:
        """Return the batch, which `__getitems__` has made."""
        return cast(Batch, items)


class FrozenDataModule(DataModule):
    """Loads head inputs, (B, ...) by head in a batch, in the place of images, for training, validation and test.

    All images are transformed as in a test. A test of several views of each image still loads the images. Before the
    training ``load_inputs`` is set, which returns the head inputs of all images of a table.
    """

    load_inputs: Callable[[ImageTable], Mapping[str, Tensor]]

    def _make_dataset(self, table: ImageTable, transform: Transform, on_corrupt: str) -> BatchDataset:
        if transform is self.train_transform or transform is self.test_transform:
            return FeatureDataset(table, self.load_inputs(table), on_corrupt)
        return super()._make_dataset(table, transform, on_corrupt)

    def _count_workers(self, dataset: BatchDataset) -> int:
        return 0 if isinstance(dataset, FeatureDataset) else super()._count_workers(dataset)


class FrozenLearner(MetricLearner):
    """A `MetricLearner` that trains the heads alone; its batches hold head inputs by head in the place of images.

    Checkpoints hold the whole model, so they are used as those of any other training. The heads take all images of a
    batch at once, whatever ``training.gradient_cache`` says: their inputs are in memory anyway.
    """

    model: EmbeddingModel

    def __init__(self, model: EmbeddingModel, *arguments: Any, **settings: Any) -> None:
        super().__init__(model, *arguments, **settings)
        model.backbone.requires_grad_(False)

    def embed_for_loss(self, images: Any, rows: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Embed the head inputs of a batch -> embeddings (B, D) by head."""
        return self.embed_images(images)

    def embed_images(self, images: Any) -> dict[str, Tensor]:
        """Embed head inputs, or images (B, 3, H, W) of a test of several views -> embeddings (B, D) by head."""
        return self.model.embed_inputs(images) if isinstance(images, Mapping) else super().embed_images(images)
