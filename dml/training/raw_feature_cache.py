"""The features of a backbone for the images of a table, computed once and kept in the data set's cache folder."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from dml.data.cache import CacheFolder
from dml.data.contents import read_stamps
from dml.data.prepared_files import UnfitFileError, open_file, replacing_file
from dml.data.table import ImageTable
from dml.ops.checksums import DamageError, check_zip
from dml.ops.errors import InputError

FORMAT = 1
"""Version of the files of features; it goes up when the features or their storage change."""


def load_or_compute(
    table: ImageTable,
    folder: CacheFolder,
    backbone: nn.Module,
    settings: Mapping[str, Any],
    *,
    compute: Callable[[ImageTable], Tensor],
    warn: Callable[[str], None],
) -> Tensor:
    """Return the features of all images of a table, stored by an earlier call or else computed and stored.

    Args:
        table: images that can be read, of any splits.
        folder: cache folder of the data set, which exists. The file is ``features-<fingerprint>.npz``.
        backbone: network that computes the features; the fingerprint covers its weights.
        settings: everything else that decides the features, such as the transform: values that JSON can hold.
        compute: function that embeds the rows of the split "test" of a table -> (N, F). It gets the images of
            ``table``, each once, all in that split.
        warn: function that is called with a line if the stored file can't be used.

    Returns:
        Features (N, F) float32, on CPU, one for each row of the table.

    Raises:
        InputError: if a link or a folder is in the place of the file.
    """
    _, first_rows, image_of_row = np.unique(table.paths, return_index=True, return_inverse=True)
    images = table.take(first_rows.astype(np.int64))
    fingerprint = _compute_fingerprint(images, folder, backbone, settings)
    path = folder.path / f"features-{fingerprint[:16]}.npz"
    features = _read_features(path, fingerprint, len(images), warn)
    if features is None:
        features = compute(replace(images, split=np.full(len(images), "test")))
        with replacing_file(path) as partial, partial.open("wb") as file:
            np.savez(file, fingerprint=np.array(fingerprint), features=features.numpy())
    return features[torch.from_numpy(image_of_row.reshape(-1))]


def _compute_fingerprint(
    images: ImageTable, folder: CacheFolder, backbone: nn.Module, settings: Mapping[str, Any]
) -> str:
    """Return the SHA-256 of all that decides the features: settings, weights, and the files' names, sizes and times."""
    paths = images.paths.tolist()
    files = list(zip(folder.relative_paths(paths), read_stamps(paths).tolist(), strict=True))
    digest = sha256(json.dumps([FORMAT, settings, files], sort_keys=True).encode())
    for name, weights in backbone.state_dict().items():
        digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


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
