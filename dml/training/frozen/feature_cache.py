"""Features of a frozen backbone for the images of a table, computed once and kept in the data set's cache folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from dml.data.image_files.contents import read_stamps
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.prepared_files import UnfitFileError, open_file, replacing_file
from dml.data.table import ImageTable
from dml.ops.errors import InputError
from dml.ops.filesystem.checksums import DamageError, check_zip
from dml.ops.tensor_hashes import add_tensors

FORMAT = 3
"""Version of the files of features; it goes up when the features or their storage change."""

Compute = Callable[[ImageTable, Sequence[str]], tuple[Mapping[str, Tensor], Tensor]]
"""Function of a table, all of whose images are in the split "test", and of names of features.

It returns the features (R, ...) of the R images that can be read, by name, and the rows (R,) of these images.
"""


@dataclass
class FeatureCache:
    """Keeps features of images in files ``features-<fingerprint>.npz``, one for each kind of features and each table.

    Features that can't be stored stay in memory: all without a folder, and those of tables with unreadable images.

    Args:
        folder: cache folder of the data set, which exists; None for no files.
        warn: function that is called with a line if a stored file can't be used.
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
            settings: everything else that decides the features of each name, such as the transform: values that JSON
                can hold.
            compute: function that computes the features which aren't stored.

        Returns:
            Features (N, ...) float32 by name, on CPU, one for each row of the table. An image that can't be read has
            NaN.

        Raises:
            InputError: if a link or a folder is in the place of a file.
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
        """Return the SHA-256 of all that decides the features of each name.

        These are settings, weights, and the files' names, sizes and times.
        """
        paths = images.paths.tolist()
        names = self.folder.relative_paths(paths) if self.folder else paths
        files = list(zip(names, read_stamps(paths).tolist(), strict=True))
        digest = sha256(json.dumps([FORMAT, files]).encode())
        add_tensors(digest, backbone.state_dict().items())
        return {
            name: sha256(json.dumps([digest.hexdigest(), values], sort_keys=True).encode()).hexdigest()
            for name, values in settings.items()
        }

    def _read(self, fingerprint: str, count: int) -> Tensor | None:
        if fingerprint in self._memory or self.folder is None:
            return self._memory.get(fingerprint)
        return _read_features(_find_file(self.folder, fingerprint), fingerprint, count, self.warn)

    def _store(self, fingerprint: str, features: Tensor, rows: Tensor, count: int) -> Tensor:
        """Keep features (R, ...) of some of the images -> features (count, ...) with NaN for the others."""
        if len(rows) == count and self.folder is not None:
            with replacing_file(_find_file(self.folder, fingerprint)) as partial, partial.open("wb") as file:
                np.savez(file, fingerprint=np.array(fingerprint), features=features.numpy())
            return features
        self._memory[fingerprint] = features.new_full((count, *features.shape[1:]), torch.nan)
        self._memory[fingerprint][rows] = features
        return self._memory[fingerprint]


def _find_file(folder: CacheFolder, fingerprint: str) -> Path:
    return folder.path / f"features-{fingerprint[:16]}.npz"


def _read_features(path: Path, fingerprint: str, count: int, warn: Callable[[str], None]) -> Tensor | None:
    """Read features (count, F); None if there are none, or if they aren't as they were written."""
    try:
        with open_file(path):  # it refuses links
            check_zip(path)
        with np.load(path) as arrays:
            stored_fingerprint, features = str(arrays["fingerprint"]), arrays["features"]
    except FileNotFoundError:
        return None
    except InputError as error:
        if not isinstance(error, UnfitFileError):
            raise
        warn(f"{error}; the features are computed anew")
        return None
    except (DamageError, BadZipFile, KeyError, ValueError, EOFError) as error:
        warn(f"{path}: damaged ({error}); the features are computed anew")
        return None
    if stored_fingerprint != fingerprint or features.dtype != np.float32 or features.shape[:1] != (count,):
        warn(f"{path}: holds features of other images or weights; they are computed anew")
        return None
    return torch.from_numpy(features)
