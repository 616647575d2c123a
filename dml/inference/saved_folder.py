"""The folder of a saved model, which holds all that is needed to embed images, and a description for people.

- ``model.safetensors``: the weights.
- ``config.yaml``: the resolved configuration of the training, with the network and the preprocessing.
- ``model.json``: fingerprint, heads, size of the vectors, names of the classes it has seen, metrics, and the SHA-256 of
  itself and of the files that are read back.
- ``README.md`` and, if the run has one, ``retrieval.png``: the model card, in the format of the Hugging Face hub.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors.torch import save

from dml.evaluation.names import (
    HEADS,
    RERANKED,
    format_percent,
    join_head_names,
)
from dml.evaluation.threshold import describe_choice, find_calibration, find_nearest_threshold
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.model_settings import ModelSettings
from dml.report.provenance import name_dataset
from dml.runtime.checksums import check_files, file_checksum, read_manifest, write_manifest
from dml.runtime.errors import InputError
from dml.runtime.files import replacing_folder
from dml.runtime.paths import expand_home
from dml.runtime.run_files import (
    check_metrics,
    read_configuration,
    replace_nan,
    restore_nan,
)
from dml.runtime.text import markdown_table, printable

FORMAT = 2
"""The version of the files; a model of another one is saved again."""

WEIGHTS, CONFIG, DESCRIPTION, CARD, PICTURE = (
    "model.safetensors",
    "config.yaml",
    "model.json",
    "README.md",
    "retrieval.png",
)
FILES = (WEIGHTS, CONFIG, DESCRIPTION, PICTURE)
"""The files that a model is read from."""


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
        InputError: if a file is missing, damaged, or of another format.
    """
    file = path / DESCRIPTION
    try:
        description, checksums = read_manifest(file, FORMAT)
        file = path
        picture = (path / PICTURE).read_bytes() if (path / PICTURE).is_file() else None
        check_files(path, (WEIGHTS, CONFIG) if picture is None else (WEIGHTS, CONFIG, PICTURE), checksums)
        config = read_configuration(path / CONFIG)
        name, fingerprint = description["name"], description["fingerprint"]
        heads, chosen = (tuple(map(str, description[key])) for key in ("heads", "chosen_heads"))
        training, metrics = dict(description["training"]), restore_nan(dict(description["metrics"]))
        check_metrics(metrics)
        class_names, val_class_names = (tuple(map(str, description[key])) for key in ("class_names", "val_class_names"))
        parts = {part: dict(config[part]) for part in ("model", "transform", "data")}
        settings = ModelSettings(
            {**config, **parts}, str(name), training, metrics, class_names, val_class_names, picture, trust
        )
        # what is read of them later: a missing value, or one of another kind, raises an error here
        _ = settings.batch_size, settings.views, settings.limits, settings.decisive
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{printable(file)}: not as save_pretrained wrote it ({line}); save the model again"
        ) from error
    return SavedModel(path, settings, heads, chosen, str(fingerprint))


def save_folder(embedder: ImageEmbedder, folder: str | Path, license_id: str | None) -> Path:
    """Save a model; see `dml.inference.image_embedder.ImageEmbedder.save_pretrained`.

    The files are written to a new folder, which then takes the place of the old one.
    """
    path = expand_home(folder).absolute()
    if path.is_symlink():
        path = path.resolve()  # the folder that it leads to is replaced, not the link
    if path.exists() and not is_saved_folder(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{printable(folder)}: holds something else; give a new folder, or one of a saved model")
    settings = embedder.settings
    with replacing_folder(path) as partial:
        state = {name: value.detach().cpu().clone().contiguous() for name, value in embedder.model.state_dict().items()}
        (partial / WEIGHTS).write_bytes(save(state, metadata={"fingerprint": embedder.fingerprint}))
        (partial / CONFIG).write_text(OmegaConf.to_yaml(dict(settings.config)), encoding="utf-8")
        if settings.picture is not None and embedder.has_chosen_heads:
            (partial / PICTURE).write_bytes(settings.picture)
        checksums = {file.name: file_checksum(file) for file in partial.iterdir()}
        (partial / CARD).write_text(write_card(embedder, license_id), encoding="utf-8")
        write_manifest(partial / DESCRIPTION, describe(embedder), checksums)
    return path


def describe(embedder: ImageEmbedder) -> dict[str, Any]:
    """Return the contents of ``model.json``."""
    settings = embedder.settings
    return {
        "format": FORMAT,
        "name": settings.name,
        "fingerprint": embedder.fingerprint,
        "heads": [*embedder.heads],
        "chosen_heads": [*embedder.model.chosen_heads],
        "dimension": embedder.dimension,
        "training": dict(settings.training),
        "metrics": replace_nan(settings.metrics),
        "class_names": [*settings.class_names],
        "val_class_names": [*settings.val_class_names],
    }


SHOWN = ("recall@", "map@r", "h_ap", "nmi")
"""Beginnings of the names of the metrics that the card shows, without their level."""

TEMPLATE = Path(__file__).with_name("assets") / "model_card.md"
"""The text of the card, in the language of Jinja."""


def write_card(embedder: ImageEmbedder, license_id: str | None) -> str:
    """Return the text of a model's card."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    settings, errors = embedder.settings, embedder.threshold_errors
    dataset = name_dataset(settings.config) if "dataset" in settings.config else ""
    shown = select_shown(_select_metrics(embedder))
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
        settings=settings,
        dataset=dataset,
        dimension=embedder.dimension,
        has_picture=settings.picture is not None and embedder.has_chosen_heads,
        facts=markdown_table(("fact", "value"), _list_facts(embedder, license_id)),
        results=_tabulate_results(settings.metrics, shown),
        lacks_metrics_of_heads=bool(settings.metrics) and not embedder.has_chosen_heads,
        errors=errors,
        threshold_choice=describe_choice(errors),
        nearest_threshold=find_nearest_threshold(errors),
        nearest_choice=describe_choice(errors, of_nearest=True),
        thresholds=_tabulate_thresholds(errors),
        calibration=find_calibration(errors),
        calibrations=_tabulate_calibrations(errors),
    )
    return f"{card.content}\n"


def _select_metrics(embedder: ImageEmbedder) -> Mapping[str, Any]:
    """Return the metrics of the heads that the model is used with; of heads that the test left out there are none."""
    metrics = embedder.settings.metrics
    if embedder.has_chosen_heads:
        return metrics
    prefix = f"{HEADS}/{join_head_names(embedder.heads)}/"
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def select_shown(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that the card shows, by name, of those of the chosen heads together."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name.split("/")[0] not in ("raw", "heads", "fixed", RERANKED, "threshold")
        and name.rpartition("/")[2].startswith(SHOWN)
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


SELECTIONS = {"val": "validation classes", "last": "nothing: it is the last one", "test": "the test classes themselves"}
"""What a checkpoint was chosen on, by the value of ``evaluation.selection``."""


def _list_facts(embedder: ImageEmbedder, license_id: str | None) -> Iterable[tuple[str, str]]:
    settings = embedder.settings
    config, training = settings.config, settings.training
    height, width = embedder.preprocess(torch.zeros(3, 600, 800, dtype=torch.uint8)).shape[-2:]
    selection = SELECTIONS.get(str(settings.metrics.get("selection")), "unknown: the run wasn't tested at this step")
    yield "network", f"{settings.name}, heads {' + '.join(embedder.heads)}"
    yield "vector", f"{embedder.dimension} dimensions, compared by cosine"
    yield "input", f"RGB images of any size, which become {width} x {height} pixels"
    yield "background of transparent images", settings.limits.background
    if "dataset" in config:  # a network that dml didn't train has none
        yield "trained on", f"{name_dataset(config)}, {len(settings.class_names) or 'an unknown number of'} classes"
        yield "loss", str((config.get("loss") or {}).get("_target_", "unknown")).rpartition(".")[2]
        yield "steps", str(training.get("step", "unknown"))
        yield "checkpoint chosen on", selection
        yield "seed", str(config.get("seed", "unknown"))
    yield "fingerprint", f"`{embedder.fingerprint}`"
    yield "license of the weights", license_id or "none was stated; pretrained weights and data have their own"


def _tabulate_results(metrics: Mapping[str, Any], shown: Mapping[str, float]) -> str:
    if not shown:
        return ""
    raw = {name: metrics.get(f"raw/{name}", math.nan) for name in shown}
    rows = [
        (name, f"{100 * value:.1f}", "" if math.isnan(raw[name]) else f"{100 * raw[name]:.1f}")
        for name, value in shown.items()
    ]
    return markdown_table(("metric", "this model", "the network's features before training"), rows)


def _tabulate_thresholds(errors: Mapping[str, float]) -> str:
    rows = [
        (name, format_percent(errors[fmr]), f"{100 * errors[fnmr]:.1f}")
        for name, fmr, fnmr in (
            ("validation classes", "val_fmr", "val_fnmr"),
            ("test classes", "fmr", "fnmr"),
            ("test classes, the median one", "fmr_median_class", "fnmr_median_class"),
            ("test classes, the worst one", "fmr_worst_class", "fnmr_worst_class"),
        )
        if fmr in errors
    ]
    heads = ("errors in percent", "pairs of different classes judged the same", "pairs of one class judged different")
    return markdown_table(heads, rows)


def _tabulate_calibrations(errors: Mapping[str, float]) -> str:
    rows = [
        (
            pairs,
            format_percent(errors[f"ece{suffix}"]),
            *(f"{errors[name + suffix]:.4f}" for name in ("brier", "log_loss")),
        )
        for pairs, suffix in (("all pairs", ""), ("as many pairs of one class as of others", "_balanced"))
        if f"ece{suffix}" in errors
    ]
    return markdown_table(("on the test classes", "calibration error, %", "Brier score", "log loss"), rows)
