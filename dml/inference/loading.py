"""The function that opens a trained model: from a run's folder, a checkpoint, or a saved folder."""

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
from dml.inference.pretrained import pretrained
from dml.inference.saved_folder import DESCRIPTION, FILES, WEIGHTS, SavedModel, is_saved_folder, read_folder
from dml.models.adapters import merge_updates
from dml.run import resolvers  # noqa: F401 (it registers the resolvers that configurations call)
from dml.run.config_folders import pretrained_name
from dml.run.given import giving
from dml.run.stages import find_stage, resolve_parts
from dml.run.stored import extract_run, open_stored
from dml.runtime.checksums import rows_checksum
from dml.runtime.errors import InputError
from dml.runtime.files import clean_up
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder, newest_runs
from dml.runtime.text import printable
from dml.training.checkpoints import (
    TrainingProgress,
    find_checkpoint,
    lacks_weights,
    load_model,
    load_state,
    read_checkpoint,
)

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The name of a repository on the Hugging Face hub, unless the part before the slash is a folder here."""

SAVED = (
    *(
        "seed",
        "data",
        "dataset",
        "transform",
        "sampler",
        "model",
        "adapter",
        "loss",
        "optimizer",
        "scheduler",
        "evaluation",
    ),
    "trainer",
)
"""The parts of a run's configuration that a saved model keeps."""

logger = logging.getLogger(__name__)


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

    Raises:
        InputError: if there is no model, the hub can't be reached, or the model is damaged, or can't be built or used;
            or if the pretrained weights aren't those of the training.
    """
    if (name := pretrained_name(place)) is not None:
        embedder = pretrained(name, weights=None if weights is None else str(weights), device=device)
        return embedder if heads is None else ImageEmbedder(embedder.model, embedder.settings, heads, device)
    path = expand_home(place)
    if not path.exists():
        clean_up(path.parent, path.name)
    if HUB_NAME.fullmatch(str(place)) and not os.path.exists(path.parent):
        path = _download(str(place), revision)
    if is_saved_folder(path):
        saved = read_folder(path, trust=trust)
        saved.settings.check(place)
        with giving({} if module is None else {"module": module}):
            return _build_saved(saved, heads, device)
    if not path.exists():
        raise InputError(f"{printable(path)}: nothing is there; give a run's folder, a saved model or a checkpoint")
    if os.path.isdir(path):
        path = find_checkpoint(_find_run(path))
    settings = read_settings(path, trust=trust)
    settings.check(place)
    model = settings.build_trained_model(
        lacks_weights=lacks_weights(read_checkpoint(path, lazily=True)),
        weights=None if weights is None else str(expand_home(weights)),
    )
    load_model(model, path)
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
            f"({type(reason).__name__}); give a run's folder, a saved model or a checkpoint"
        ) from error
    if not is_saved_folder(folder):
        raise InputError(f"{repository}: on the Hugging Face hub, but it holds nothing that push_to_hub uploaded")
    return folder


def _build_saved(saved: SavedModel, heads: Sequence[str] | None, device: str) -> ImageEmbedder:
    """Build a saved model and load its weights."""
    weights = saved.path / WEIGHTS
    try:
        state = load_file(weights)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch, which opens the file, raises the last one
        raise InputError(f"{printable(weights)}: cannot be read ({error}); save the model again") from error
    model = saved.settings.build_model()
    load_state(model, state, weights)
    model.chosen_heads = saved.chosen_heads
    embedder = ImageEmbedder(model, saved.settings, saved.heads, device)
    if embedder.fingerprint != saved.fingerprint:
        raise InputError(
            f"{printable(saved.path)}: its files aren't as they were saved (fingerprint {embedder.fingerprint}, "
            f"{DESCRIPTION} says {printable(saved.fingerprint)}); save the model again"
        )
    return embedder if heads is None else ImageEmbedder(model, saved.settings, heads, device)


def _find_run(folder: Path) -> RunFolder:
    """Return the run in a folder, or the newest one with a checkpoint anywhere below it, which a warning names."""
    run = RunFolder(folder)
    if not run.last_checkpoint.parent.is_dir():
        run = next((newest for newest in newest_runs(folder) if newest.last_checkpoint.exists()), run)
    if run.path != folder:
        logger.warning("%s: the newest run in it is taken, %s", printable(folder), printable(run.path))
    return run


def read_settings(path: Path, *, trust: bool = False) -> ModelSettings:
    """Read from a checkpoint, and from the folder of its run if it lies in one, what the model was trained with.

    Raises:
        InputError: if the checkpoint can't be read, or its model embeds no image alone.
    """
    checkpoint = read_checkpoint(path, lazily=True)
    progress = TrainingProgress.from_checkpoint(checkpoint)
    stored = open_stored(extract_run(checkpoint).config)
    stage = find_stage(stored, progress.stage).config
    unused = [str(key) for key in stage if key not in (*SAVED, "recurrent")]
    config = resolve_parts(stage, unused)
    if config.pop("recurrent") is not None:
        raise InputError(
            f"{printable(path)}: its recurrent network embeds an image by its neighbors in the data set, so it can't "
            "embed images alone; dml evaluate tests it"
        )
    training = {**progress.describe(checkpoint["run"]), "stage": progress.stage}
    folder = RunFolder.from_checkpoint(path)
    metrics = folder.metrics() if folder.metrics_file.exists() else {}
    is_tested = metrics.get("step") == training["step"] and _is_of_run(path, progress, folder)
    splits = folder.splits() or {}
    validated = {*splits.get("val", {})}
    if (config.get("evaluation") or {}).get("selection") == "test":
        validated |= {name for classes in splits.values() for name in classes}
    return ModelSettings(
        config,
        _name_model(config["model"]),
        training,
        metrics if is_tested else {},
        tuple(sorted(splits.get("train", {}))),
        tuple(sorted(validated)),
        folder.picture_file.read_bytes() if is_tested and folder.picture_file.exists() else None,
        is_trusted=trust,
    )


def _is_of_run(path: Path, progress: TrainingProgress, folder: RunFolder) -> bool:
    """Return whether a checkpoint was written by the run in whose folder it lies, and warn if it wasn't.

    The run's history up to the checkpoint's step tells it, which a resumed run keeps. Where the history is missing, or
    the checkpoint is of a version that stored no checksum of it, the checkpoint passes.
    """
    rows = {int(row["step"]): row for row in folder.history() if int(row["step"]) <= progress.total_steps}
    is_own = not rows or progress.history_checksum in ("", rows_checksum(rows))
    if not is_own:
        logger.warning(
            "%s: not of the run in whose folder it lies, or %s has changed; it is opened without metrics and threshold",
            printable(path),
            folder.history_file.name,
        )
    return is_own


def _name_model(model: Mapping[str, Any]) -> str:
    backbone = model.get("backbone") or {}
    return str(backbone.get("name") or str(backbone.get("_target_", "model")).rpartition(".")[2])
