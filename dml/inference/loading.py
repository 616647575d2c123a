"""The functions that open a trained model, from a run's folder, a checkpoint or a saved folder, or a pretrained one."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from dml.inference.image_embedder import ImageEmbedder
from dml.inference.model_settings import ModelSettings
from dml.inference.raw_networks import build_pretrained
from dml.inference.saved_folder import FILES, WEIGHTS, is_saved_folder, read_folder
from dml.models.adapters import merge_updates
from dml.run.config_folders import pretrained_name
from dml.run.given import giving
from dml.run.stored import extract_stage, resolve_parts
from dml.runtime.errors import InputError
from dml.runtime.files import clean_up, expand_home
from dml.runtime.reading import rows_checksum
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable
from dml.training import checkpoints
from dml.training.checkpoints import TrainingProgress

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The name of a repository on the Hugging Face hub, unless the part before the slash is a folder here."""

DECISIVE = ("model", "adapter", "transform", "data", "dataset", "loss", "evaluation", "seed")
SAVED = (*DECISIVE, "sampler", "optimizer", "scheduler", "trainer")
"""The parts of a run's configuration that a saved model keeps."""

NEEDED = "give a run's folder, a saved model or a checkpoint"

logger = logging.getLogger(__name__)


def pretrained(name: str, *, image_size: int = 224, weights: str | None = None, device: str = "auto") -> ImageEmbedder:
    """Open a pretrained network, whose pooled features embed images: no head, and no training.

    >>> import dml
    >>> dml.pretrained("tf_efficientnet_lite0").dimension  # doctest: +SKIP
    1280

    Args:
        name: choice of ``conf/model``, or any other name of timm.
        weights: file of the weights; None takes those that the choice names, of a package or a download.
    """
    return ImageEmbedder(*build_pretrained(name, image_size, weights), device=device)


@torch.random.fork_rng(devices=[])  # layers draw their first weights while they are built
def load(
    place: str | Path,
    *,
    heads: Sequence[str] | None = None,
    device: str = "auto",
    trust: bool = False,
    weights: str | Path | None = None,
    module: nn.Module | None = None,
    revision: str = "main",
) -> ImageEmbedder:
    """Open a trained model, without a change of torch's random numbers.

    >>> import dml
    >>> model = dml.load("outputs/emoji/rll/2026-01-31_12-00-00")  # doctest: +SKIP
    >>> model.embed("photos/").shape  # doctest: +SKIP
    (200, 192)

    Args:
        place: folder of a run, whose tested checkpoint is taken; a folder of runs, of which the newest is taken; a
            checkpoint; a folder of `save_pretrained`; or, where no such file is there, "user/repository" of the Hugging
            Face hub, to which `ImageEmbedder.push_to_hub` uploads. "pretrained:NAME" is `dml.pretrained` of a name.
        heads: names of the heads whose embeddings are concatenated, such as ["M", "H"]; None takes those that the
            training chose, see ``choose_heads``, or all.
        device: device that embeds, such as "cpu" or "cuda"; "auto" takes a GPU if there is one.
        trust: whether the model may be built of code outside of the packages that dml knows, such as your own network.
            Only say so of files whose origin you trust.
        weights: file of the pretrained weights that the training began with, in place of the one that it names. Only
            runs with an adapter need it, whose checkpoints lack the frozen weights.
        module: network of `ImageEmbedder.from_module`, of which a saved folder holds the weights and not the code.
        revision: branch, tag or commit of the repository on the hub.
    """
    weights_file = None if weights is None else str(expand_home(weights))
    if (name := pretrained_name(place)) is not None:
        return ImageEmbedder(*build_pretrained(name, 224, weights_file), heads, device)
    path = expand_home(place)
    if not path.exists():
        clean_up(path.parent, path.name)
    if HUB_NAME.fullmatch(str(place)) and not os.path.exists(path.parent):
        path = _download(str(place), revision)
    if is_saved_folder(path):
        with giving({} if module is None else {"module": module}):
            return _load_saved(path, place, heads, device, trust=trust)
    if not path.exists():
        raise InputError(f"{printable(path)}: nothing is there; {NEEDED}")
    if os.path.isdir(path):
        path = checkpoints.find_checkpoint(path)
    checkpoint = checkpoints.read_checkpoint(path, lazily=True)
    settings = _read_settings(path, checkpoint, trust=trust)
    settings.check(place)
    if checkpoints.lacks_weights(checkpoint):  # those that the adapter left as they were
        weights_file = weights_file or settings.config["model"]["backbone"]["weights"]
    model = settings.build_model(
        has_adapter=True, weights=weights_file if checkpoints.lacks_weights(checkpoint) else None
    )
    checkpoints.load_model(model, path)
    merge_updates(model)
    return ImageEmbedder(model, settings, heads, device)


def _download(repository: str, revision: str) -> Path:
    """Download a saved model from the Hugging Face hub, or find it in the hub's cache, and return the folder."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=[*FILES]))
    except (OSError, ValueError) as error:
        # an error of this kind tells that no copy is in the cache, and its cause why the hub wasn't reached
        reason = error.__cause__ if isinstance(error, FileNotFoundError) else error
        raise InputError(
            f"{repository}: nothing is there, and the Hugging Face hub gives no revision {printable(revision)} of it "
            f"({type(reason).__name__}); {NEEDED}"
        ) from error
    if not is_saved_folder(folder):
        raise InputError(f"{repository}: on the Hugging Face hub, but it holds nothing that push_to_hub uploaded")
    return folder


def _load_saved(path: Path, place: object, heads: Sequence[str] | None, device: str, *, trust: bool) -> ImageEmbedder:
    """Build a saved model, load its weights, and compare its fingerprint with the one that it was saved with."""
    saved, weights = read_folder(path, trust=trust), path / WEIGHTS
    saved.settings.check(place)
    try:
        state = load_file(weights)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch, which opens the file, raises the last one
        raise InputError(f"{printable(weights)}: cannot be read ({error}); save the model again") from error
    model = saved.settings.build_model()
    checkpoints.load_state(model, state, weights)
    model.chosen_heads = saved.chosen_heads
    embedder = ImageEmbedder(model, saved.settings, saved.heads, device)
    if embedder.fingerprint != saved.fingerprint:
        raise InputError(
            f"{printable(path)}: its files aren't as they were saved (fingerprint {embedder.fingerprint}, not "
            f"{printable(saved.fingerprint)}); save the model again"
        )
    return embedder if heads is None else ImageEmbedder(model, saved.settings, heads, device)


def _read_settings(path: Path, checkpoint: Mapping[str, Any], *, trust: bool) -> ModelSettings:
    """Return the settings of a checkpoint's model, with the metrics of its run's folder if it lies in one."""
    progress = TrainingProgress.from_checkpoint(checkpoint)
    stage = extract_stage(checkpoint).config
    config = resolve_parts(stage, [str(key) for key in stage if key not in (*SAVED, "recurrent")])
    if config.pop("recurrent") is not None:
        raise InputError(
            f"{printable(path)}: its recurrent network embeds an image by its neighbors in the data set, so it can't "
            "embed images alone; dml evaluate tests it"
        )
    training = {**progress.describe(), "stage": progress.stage}
    folder = RunFolder.from_checkpoint(path)
    metrics = folder.metrics() if folder.metrics_file.exists() else {}
    is_tested = metrics.get("step") == training["step"] and _is_of_run(path, progress, folder)
    splits = folder.splits() or {}
    validated = {*splits.get("val", {})}
    if (config.get("evaluation") or {}).get("selection") == "test":
        validated |= {name for classes in splits.values() for name in classes}
    backbone = config["model"].get("backbone") or {}
    return ModelSettings(
        config,
        name=str(backbone.get("name") or str(backbone.get("_target_", "model")).rpartition(".")[2]),
        training=training,
        metrics=metrics if is_tested else {},
        class_names=tuple(sorted(splits.get("train", {}))),
        val_class_names=tuple(sorted(validated)),
        picture=folder.picture_file.read_bytes() if is_tested and folder.picture_file.exists() else None,
        is_trusted=trust,
    )


def _is_of_run(path: Path, progress: TrainingProgress, folder: RunFolder) -> bool:
    """Return whether a checkpoint was written by the run in whose folder it lies, and warn if it wasn't."""
    rows = {int(row["step"]): row for row in folder.history() if int(row["step"]) <= progress.total_steps}
    is_own = not rows or progress.history_checksum == rows_checksum(rows)
    if not is_own:
        logger.warning(
            "%s: not of the run in whose folder it lies, or %s has changed; it is opened without metrics and threshold",
            printable(path),
            folder.history_file.name,
        )
    return is_own
