"""The folder of a saved model, which holds all that is needed to embed images, and a description for people.

- ``model.safetensors``: the weights.
- ``config.yaml``: the resolved configuration of the training, with the network and the preprocessing.
- ``model.json``: fingerprint, heads, size of the vectors, names of the classes it has seen, metrics, and the SHA-256 of
  itself and of the files that are read back.
- ``README.md`` and, if the run has one, ``retrieval.png``: the model card, in the format of the Hugging Face hub.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf
from safetensors.torch import save

from dml.evaluation.metric import HEADS, RERANKED, join_head_names
from dml.evaluation.names import format_percent, name_dataset
from dml.evaluation.threshold import describe_choice
from dml.inference.embedder import Embedder
from dml.inference.model_settings import ModelSettings
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home, in_one_line, replacing_folder
from dml.runtime.reading import check_files, file_checksum, read_manifest, write_manifest
from dml.runtime.run_folder import check_metrics, read_configuration, replace_nan, restore_nan
from dml.runtime.text import printable

FORMAT = 2  # the version of the files; a model of another one is saved again

WEIGHTS, CONFIG, DESCRIPTION, PICTURE = "model.safetensors", "config.yaml", "model.json", "retrieval.png"
FILES = (WEIGHTS, CONFIG, DESCRIPTION, PICTURE)
"""The files that a model is read from."""
CARD, TEMPLATE = "README.md", Path(__file__).with_name("assets") / "model_card.md"

SELECTIONS = {"val": "validation classes", "last": "nothing: it is the last one", "test": "the test classes themselves"}
"""What a checkpoint was chosen on, by the value of ``evaluation.selection``."""


class SavedModel(NamedTuple):
    """The description of a model in its saved folder."""

    settings: ModelSettings
    heads: tuple[str, ...]  # with which it was saved
    chosen_heads: tuple[str, ...]  # those that its training chose, which its metrics are of
    fingerprint: str


def is_saved_folder(path: Path) -> bool:
    """Return whether a path is a folder that `save_folder` wrote."""
    return os.path.isfile(path / DESCRIPTION) and os.path.isfile(path / WEIGHTS)


def read_folder(path: Path, *, trust: bool = False) -> SavedModel:
    """Compare the files of a saved model with their checksums, and read all but the weights."""
    try:
        description, checksums = read_manifest(path / DESCRIPTION, FORMAT)
        picture = (path / PICTURE).read_bytes() if (path / PICTURE).is_file() else None
        check_files(path, [WEIGHTS, CONFIG, *([] if picture is None else [PICTURE])], checksums)
        config = read_configuration(path / CONFIG)
        texts = ("heads", "chosen_heads", "class_names", "val_class_names")
        heads, chosen, class_names, val_class_names = (tuple(map(str, description[key])) for key in texts)
        training, metrics = dict(description["training"]), restore_nan(dict(description["metrics"]))
        check_metrics(metrics)
        config = {**config, **{part: dict(config[part]) for part in ("model", "transform", "data")}}
        name = str(description["name"])
        settings = ModelSettings(config, name, training, metrics, class_names, val_class_names, picture, trust)
        # what is read of them later: a missing value, or one of another kind, raises an error here
        _ = settings.batch_size, settings.views, settings.limits, settings.decisive
        return SavedModel(settings, heads, chosen, str(description["fingerprint"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{printable(path)}: not as save_pretrained wrote it ({line}); save the model again"
        ) from error


def save_folder(embedder: Embedder, folder: str | Path, license_id: str | None = None) -> Path:
    """Save a model to a new folder, which then takes the place of the old one; see `ImageEmbedder.save_pretrained`."""
    path = expand_home(folder).absolute()
    if path.is_symlink():
        path = path.resolve()  # the folder that it leads to is replaced, not the link
    if path.exists() and not is_saved_folder(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of a saved model")
    settings, model = embedder.settings, embedder.model
    description = {
        "format": FORMAT,
        "name": settings.name,
        "fingerprint": embedder.fingerprint,
        "heads": [*embedder.heads],
        "chosen_heads": [*model.chosen_heads],
        "dimension": embedder.dimension,
        "training": dict(settings.training),
        "metrics": replace_nan(settings.metrics),
        "class_names": [*settings.class_names],
        "val_class_names": [*settings.val_class_names],
    }
    with in_one_line(folder), replacing_folder(path) as partial:
        state = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        (partial / WEIGHTS).write_bytes(save(state, metadata={"fingerprint": embedder.fingerprint}))
        (partial / CONFIG).write_text(OmegaConf.to_yaml(dict(settings.config)), encoding="utf-8")
        if settings.picture is not None and embedder.has_chosen_heads:
            (partial / PICTURE).write_bytes(settings.picture)
        checksums = {file.name: file_checksum(file) for file in partial.iterdir()}
        (partial / CARD).write_text(write_card(embedder, license_id), encoding="utf-8")
        write_manifest(partial / DESCRIPTION, description, checksums)
    return path


def write_card(embedder: Embedder, license_id: str | None) -> str:
    """Return the text of a model's card."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    settings, errors = embedder.settings, embedder.threshold_errors
    config, metrics = settings.config, _select_metrics(embedder)
    dataset = name_dataset(config) if "dataset" in config else ""  # a network that dml didn't train has none
    shown = {name: float(value) for name, value in metrics.items() if _is_shown(name, value)}
    results = [
        EvalResult("image-retrieval", dataset, dataset, metric_type=name, metric_value=round(value, 4))
        for name, value in shown.items()
    ]
    card_data = ModelCardData(
        library_name="dml",
        license=license_id,
        pipeline_tag="image-feature-extraction",
        tags=["deep-metric-learning", "image-retrieval"],
        model_name=settings.name if shown else None,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        card_data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        embedder=embedder,
        settings=settings,
        dataset=dataset,
        license=license_id,
        input_shape=embedder.preprocess(torch.zeros(3, 600, 800, dtype=torch.uint8)).shape,
        loss=str((config.get("loss") or {}).get("_target_", "unknown")).rpartition(".")[2],
        selection=SELECTIONS.get(str(settings.metrics.get("selection")), "unknown: the run wasn't tested at this step"),
        has_picture=settings.picture is not None and embedder.has_chosen_heads,
        shown=shown,
        raw={name: value for name in shown if math.isfinite(value := settings.metrics.get(f"raw/{name}", math.nan))},
        errors=errors,
        threshold_choice=describe_choice(errors),
        nearest_choice=describe_choice(errors, of_nearest=True),
        format_percent=format_percent,
    )
    return f"{card.content}\n"


def _select_metrics(embedder: Embedder) -> Mapping[str, Any]:
    """Return the metrics of the heads that the model is used with; of heads that the test left out there are none."""
    metrics = embedder.settings.metrics
    if embedder.has_chosen_heads:
        return metrics
    prefix = f"{HEADS}/{join_head_names(embedder.heads)}/"
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _is_shown(name: str, value: Any) -> bool:
    """Return whether the card shows a metric, of those of the chosen heads together."""
    is_of_these = name.split("/")[0] not in ("raw", "heads", "fixed", RERANKED, "threshold")
    is_known = name.rpartition("/")[2].startswith(("recall@", "map@r", "h_ap", "nmi"))
    return is_of_these and is_known and isinstance(value, int | float) and math.isfinite(value)
