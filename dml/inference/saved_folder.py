"""The folder of a saved model, which holds all that is needed to embed images, and a description for people.

- ``model.safetensors``: the weights.
- ``config.yaml``: the resolved configuration of the training, with the network and the preprocessing.
- ``model.json``: fingerprint, heads, size and geometry of the vectors, names of the training classes, metrics.
- ``README.md`` and, if the run has one, ``retrieval.png``: the model card.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save

from dml.inference.embedder import Embedder
from dml.inference.model_settings import ModelSettings
from dml.ops.configuration.former_keys import rename_keys
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.checksums import DamageError, file_checksum
from dml.ops.filesystem.files import replacing_folder
from dml.ops.filesystem.paths import expand_home
from dml.ops.run_folders.run_files import (
    check_metrics,
    read_configuration,
    read_values,
    replace_nan,
    restore_nan,
    write_sealed_text,
    write_values,
)

FORMAT = 1
"""The version of the files, which changes when older versions of dml can't read them."""

WEIGHTS, CONFIG, DESCRIPTION, CARD, PICTURE = (
    "model.safetensors",
    "config.yaml",
    "model.json",
    "README.md",
    "retrieval.png",
)


@dataclass(frozen=True)
class SavedModel:
    """A model as a folder holds it.

    Args:
        path: path of the folder.
        settings: configuration with which the model was built and trained.
        heads: names of the heads that it was saved with.
        chosen_heads: names of the heads that its training chose, which its metrics are of.
        fingerprint: fingerprint of the model when it was saved.
    """

    path: Path
    settings: ModelSettings
    heads: tuple[str, ...]
    chosen_heads: tuple[str, ...]
    fingerprint: str


def is_saved_folder(path: Path) -> bool:
    """Return whether a path is a folder that `save_folder` wrote."""
    return os.path.isfile(path / DESCRIPTION) and os.path.isfile(path / WEIGHTS)


def read_folder(path: Path, *, trust: bool = False) -> SavedModel:
    """Read the description of a saved model.

    Raises:
        InputError: if a file is missing, damaged, or of a newer version.
    """
    file = path / DESCRIPTION
    try:
        description, checksums = read_values(file, may_nest=True)
        file = path / CONFIG
        config = rename_keys(read_configuration(file))
        file = path
        version, name, fingerprint = (description[key] for key in ("format", "name", "fingerprint"))
        chosen_heads = description.get("chosen_heads", config["model"]["heads"])  # older folders name none
        heads, chosen = (tuple(map(str, names)) for names in (description["heads"], chosen_heads))
        training, metrics = dict(description["training"]), restore_nan(dict(description["metrics"]))
        check_metrics(metrics)
        class_names = tuple(map(str, description["class_names"]))
        parts = {part: dict(config[part]) for part in ("model", "transform", "data")}
        picture = (path / PICTURE).read_bytes() if (path / PICTURE).is_file() else None
        settings = ModelSettings({**config, **parts}, str(name), training, metrics, class_names, picture, trust)
        # what is read of them later: a missing value, or one of another kind, raises an error here
        _ = settings.batch_size, settings.views, settings.limits, settings.decisive
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DamageError) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{printable(file)}: not as save_pretrained wrote it ({line}); save the model again"
        ) from error
    if picture is not None and checksums.get(PICTURE) not in (None, file_checksum(path / PICTURE)):
        raise InputError(f"{printable(path / PICTURE)}: not as save_pretrained wrote it; save the model again")
    if version != FORMAT:
        raise InputError(f"{printable(path)}: of format {version}, this version of dml reads {FORMAT}; update dml")
    return SavedModel(path, settings, heads, chosen, str(fingerprint))


def save_folder(embedder: Embedder, folder: str | Path, license_id: str | None) -> Path:
    """Save a model; see `dml.inference.image_embedder.ImageEmbedder.save_pretrained`.

    The files are written to a new folder, which then takes the place of the old one.
    """
    from dml.inference.model_card import write_card

    path = expand_home(folder).absolute()
    if path.is_symlink():
        path = path.resolve()  # the folder that it leads to is replaced, not the link
    if path.exists() and not is_saved_folder(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of a saved model")
    settings, checksums = embedder.settings, {}
    with replacing_folder(path) as partial:
        state = {name: value.detach().cpu().clone().contiguous() for name, value in embedder.model.state_dict().items()}
        (partial / WEIGHTS).write_bytes(save(state, metadata={"fingerprint": embedder.fingerprint}))
        write_sealed_text(partial / CONFIG, yaml.safe_dump(dict(settings.config), sort_keys=False))
        if settings.picture is not None and embedder.has_chosen_heads:
            (partial / PICTURE).write_bytes(settings.picture)
            checksums[PICTURE] = file_checksum(partial / PICTURE)
        (partial / CARD).write_text(write_card(embedder, license_id), encoding="utf-8")
        write_values(partial / DESCRIPTION, describe(embedder), checksums)
    return path


def describe(embedder: Embedder) -> dict[str, Any]:
    """Return the contents of ``model.json``."""
    settings = embedder.settings
    return {
        "format": FORMAT,
        "name": settings.name,
        "fingerprint": embedder.fingerprint,
        "heads": [*embedder.heads],
        "chosen_heads": [*embedder.model.chosen_heads],
        "dimension": embedder.dimension,
        "geometry": embedder.geometry,
        "training": dict(settings.training),
        "metrics": replace_nan(settings.metrics),
        "class_names": [*settings.class_names],
    }
