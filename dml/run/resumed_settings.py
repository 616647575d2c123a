"""The settings and the data that a resumed run may not change, because what it has done so far depends on them."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from dml.data.split_overview import SplitSummary, describe_changes, summarize_data
from dml.data.table import TEST_SPLITS, ImageTable
from dml.run.checks import iterate_nodes
from dml.run.settings import BEGINNING, CHOICE, STEPS, list_fixed, what_fixes
from dml.run.stages import Stage, find_stage
from dml.run.stored_configuration import (
    StoredConfiguration,
    list_callbacks,
    open_stored,
    plain_config,
    resolve_values,
    without_unset,
)
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.training.checkpoints import TrainingProgress


def check_resumed_settings(
    config: DictConfig, stored: Mapping[str, Any], folder: RunFolder, progress: TrainingProgress
) -> None:
    """Make sure that a resumed run keeps its beginning, its loss, the choice of its checkpoint, and finished stages.

    Args:
        config: configuration of the resumed run.
        stored: configuration of the run so far.
        folder: folder of the run.
        progress: stage and step that the run has got to.

    Raises:
        InputError: if it changes one of them.
    """
    before = open_stored(stored)
    remedy = f"{shlex.quote(f'training.init={folder.last_checkpoint}')} begins a new run with its weights"
    stage, stage_before = (find_stage(run_config, progress.stage).config for run_config in (config, before))
    _check_finished_stages(config, before, progress.stage)
    _check_losses(stage, stage_before, remedy)
    for key in list_fixed(BEGINNING) if progress.total_steps else ():
        _check_same(key, stage_before, stage, f"trained {progress.total_steps} steps", remedy)
    counted = f"{remedy}; training.gradient_cache saves memory without other steps"
    _check_same("trainer.accumulate_grad_batches", stage_before, stage, "counted its steps and epochs", counted)
    if not folder.best_checkpoint.exists() or stage.evaluation.selection == "last":
        return
    if TrainingProgress.read(folder.best_checkpoint).stage != progress.stage:
        return  # of an earlier stage, which this one doesn't go on with
    keys = [*list_fixed(CHOICE)]
    if "test" in (stage_before.evaluation.selection, stage.evaluation.selection):
        keys.append("evaluation.selection")
    for key in keys:
        _check_same(key, stage_before, stage, "chosen its best checkpoint", remedy)


def check_trained_settings(
    config: DictConfig, stored: Mapping[str, Any], last_stage: Stage, progress: TrainingProgress
) -> None:
    """Make sure that a run whose steps are all done isn't given the name of settings with which no step was trained.

    Args:
        config: composed configuration of the resumed run.
        stored: configuration of the run so far.
        last_stage: last stage of the resumed run, with the number of its steps if that is known.
        progress: stage and step that the run has got to.

    Raises:
        InputError: if it changes a setting of its training, or has more steps than it may have.
    """
    steps, most = progress.step, last_stage.config.trainer.max_steps
    if progress.stage != last_stage.name or not isinstance(most, int) or most < 0:
        return
    if most < steps:
        raise InputError(f"trainer.max_steps={most}: the run has {steps} steps already; a shorter one is a new run")
    if most > steps:
        return
    run_before = open_stored({**stored, "callbacks": list_callbacks(stored)})
    now, before = (find_stage(run_config, last_stage.name).config for run_config in (config, run_before))
    values, values_before = (_list_values(part) for part in (now, before))
    for key in {**values, **values_before}:
        if what_fixes(key) == STEPS and (new := values.get(key)) != (old := values_before.get(key)):
            raise InputError(
                f"{key}={new}: the run has trained all of its {steps} steps with {old}; a larger trainer.max_steps "
                "trains on with the new value, and a new run begins with it"
            )


def _list_values(stage: DictConfig) -> dict[str, Any]:
    """Return the values of a stage by dotted key, with those that interpolations have.

    Those of ``callbacks`` stay: they name keys that are compared anyway, and that runs of older versions may lack.
    """
    plain = plain_config(stage)
    return flat(resolve_values(plain, unresolved="resume") | {"callbacks": list_callbacks(plain)})


def _check_same(key: str, before: DictConfig, stage: DictConfig, done: str, remedy: str) -> None:
    """Make sure that a key has the value with which the run has done something so far."""
    old, new = (OmegaConf.select(part, key) for part in (before, stage))
    if (old or None) != (new or None):  # a configuration of an older version lacks heads.choose, which means false
        raise InputError(f"{key}={new}: the run has {done} with {old} so far; {remedy}")


def _check_losses(stage: DictConfig, before: DictConfig, remedy: str) -> None:
    """Make sure that the loss is built of the same classes."""
    losses, losses_before = (
        {path: node["_target_"] for path, node in iterate_nodes(OmegaConf.to_container(part.loss), "loss")}
        for part in (stage, before)
    )
    if losses != losses_before:
        path = min(path for path in {*losses, *losses_before} if losses.get(path) != losses_before.get(path))
        old, new = (targets.get(path, "none") for targets in (losses_before, losses))
        raise InputError(f"resume: the run was trained with another loss, {path}._target_={old}, now {new}; {remedy}")


def _check_finished_stages(config: DictConfig, before: DictConfig, current: str) -> None:
    """Make sure that the stages before the current one are those that were trained."""
    finished, finished_now = (_list_changes(run_config, current) for run_config in (before, config))
    for (name, changes), (name_now, changes_now) in zip_longest(finished, finished_now, fillvalue=("", {})):
        if (name, changes) != (name_now, changes_now):
            raise InputError(
                f"stages.{name or name_now}: the run has finished its stages up to {current}, and can't change them; a "
                "new run is needed"
            )


def _list_changes(config: DictConfig, current: str) -> list[tuple[str, Any]]:
    """Return the name and the changes of each stage before the current one."""
    stages = plain_config(config)["stages"]
    names = [str(name) for name in stages]
    return [(str(name), stages[name] or {}) for name in [*stages][: names.index(current) if current in names else 0]]


ADVICE = "accept_changed_data=true goes on with the data as it is now"


def check_resumed_data(
    config: DictConfig, table_summary: SplitSummary, folder: RunFolder, stored: StoredConfiguration
) -> None:
    """Make sure that a run which is resumed has the data that it began with; its root may be another.

    Args:
        config: configuration of the run.
        table_summary: the data as it is now, see `dml.data.split_overview.summarize_data`.
        folder: folder of the run.
        stored: configuration with which the run was started before.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` or the new options of the data set say so.
    """
    before = folder.splits()
    then, now = without_unset(stored.config.get("dataset") or {}, "dataset."), plain_config(config)["dataset"]
    if before is None or config.accept_changed_data or then | {"root": None} != now | {"root": None}:
        return
    _refuse_changes(f"resume={folder.path}", before, table_summary)


def check_tested_data(config: DictConfig, split: str, table: ImageTable, stored: StoredConfiguration) -> None:
    """Make sure that a checkpoint is tested on the data of its run, unless the command line names other data.

    Args:
        config: configuration of the evaluation.
        split: split that is tested.
        table: the data set as it is now.
        stored: configuration of the run, as its checkpoint has it.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` says so.
    """
    path = expand_home(config.checkpoint)
    before: Any = RunFolder.from_checkpoint(path).splits()
    then = without_unset(stored.config.get("dataset") or {}, "dataset.")
    if before is None or config.accept_changed_data or then != plain_config(config)["dataset"]:
        return
    after: Any = summarize_data(table, config.dataset.root)
    if split == "test" and config.dataset.folds:  # too few training classes may be there to be divided as before
        used = {*TEST_SPLITS, "val"} if "val" in after else {*TEST_SPLITS}
        before, after = ({name: part[name] for name in used & part.keys()} for part in (before, after))
    _refuse_changes(f"checkpoint={path}", before, after)


def _refuse_changes(option: str, before: SplitSummary, after: SplitSummary) -> None:
    if changes := describe_changes(before, after):
        raise InputError(f"{option}: the data has changed since the run began: {'; '.join(changes)}; {ADVICE}")


@contextmanager
def restoring_configuration(folder: RunFolder) -> Iterator[None]:
    """Put `.hydra/` of a run back if the body of the ``with`` statement fails before there is another checkpoint.

    Some new settings prove impossible only when the training begins. The run would keep them, and couldn't be resumed
    without them either.
    """
    before = folder.read_configuration() if folder.has_configuration else None
    checkpoint = _identify(folder.last_checkpoint)
    try:
        yield
    except Exception:
        if before is not None and _identify(folder.last_checkpoint) == checkpoint:
            rank_zero_only(folder.write_configuration)(*before)
        raise


def _identify(file: Path) -> tuple[int, int] | None:
    """Return what another file at the same path would differ in; None if there is none."""
    if not file.exists():
        return None
    state = file.stat()
    return state.st_ino, state.st_mtime_ns
