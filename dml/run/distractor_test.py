"""The test of a model whose gallery has further items that are relevant to no query: ``evaluation.distractors``."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from dml.evaluation.distractor_folder import DistractorFolder
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.metric import OF_RANKS
from dml.evaluation.names import DISTRACTORS
from dml.models.adapters import merge_updates
from dml.models.recurrent import AnyModel
from dml.run.model_builders import list_decisive, make_fingerprint
from dml.run.settings import Settings
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.text import in_markup, printable

KEY = "evaluation.distractors"


def find_distractors(settings: Settings, state: Path | None = None) -> DistractorFolder | None:
    """Find the files of ``evaluation.distractors``; None without any.

    Args:
        settings: settings of the tested stage.
        state: folder in which the counts of finished files are kept.

    Raises:
        InputError: if there is no file, one can't be read, or ``evaluation.exclude`` is "nearest".
    """
    if settings.evaluation.distractors is None:
        return None
    place = expand_home(settings.evaluation.distractors)
    if settings.evaluation.exclude:
        raise InputError(f"{KEY}: with evaluation.exclude=nearest the excluded item may be a distractor; exclude=null")
    try:
        return DistractorFolder(place, state)
    except OSError as error:
        raise InputError(f"{KEY}={printable(place)}: {error.strerror}; a folder of .npy or .parquet files") from error


def open_distractors(settings: Settings, config: DictConfig, model: AnyModel, state: Path) -> DistractorFolder | None:
    """Find the distractors of a test, compare them with the model, and print a line of them; None without any.

    Args:
        settings: settings of the tested stage.
        config: configuration of that stage.
        model: the tested model.
        state: folder in which the counts of finished files are kept.

    Raises:
        InputError: if `find_distractors` raises one, or the embeddings are of another model.
    """
    distractors = find_distractors(settings, state)
    if distractors is None:
        return None
    merged, plain = deepcopy(model), OmegaConf.to_container(config, resolve=True)
    merge_updates(merged)
    described = list_decisive(plain) | {"heads": model.chosen_heads, "geometry": "cosine"}  # type: ignore[arg-type]
    fingerprint = make_fingerprint(described, merged)
    is_known = distractors.check(sum(model.embed_dims[head] for head in model.chosen_heads), fingerprint)
    source = (
        f"of the tested model {fingerprint}" if is_known else f"of an unknown model (the tested one: {fingerprint})"
    )
    line = f"{len(distractors):,} distractors in {distractors.path}, {source}"
    rank_zero_only(console.print)(f"[bold]gallery[/]  {in_markup(line)}")
    return distractors


def rank_among(distractors: DistractorFolder, evaluator: Evaluator, embeddings: UnitEmbeddings) -> dict[str, Any]:
    """Compute the metrics of ranks among distractors -> distractors/level0/recall@1, ..., and their number."""
    config = replace(evaluator.config, metrics=evaluator.config.select_kind(*OF_RANKS))
    metrics = replace(evaluator, config=config).evaluate(embeddings, distractors=distractors).metrics
    return {f"{DISTRACTORS}/{name}": value for name, value in metrics.items()} | {"distractors": len(distractors)}
