"""The settings that a resumed run may not change, because what it has done so far depends on them."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder
from dml.run.stages import find_stage, list_stages
from dml.training.checkpoints import TrainingProgress

CHOICE_KEYS = ("checkpoints.monitor", "checkpoints.mode", "checkpoints.tie_breaker")
"""The keys that say which of two checkpoints is the better one."""


def check_resumed_settings(
    config: DictConfig, stored: Mapping[str, Any], folder: RunFolder, progress: TrainingProgress
) -> None:
    """Make sure that a resumed run keeps its loss, the choice of its checkpoint, and the stages that it has finished.

    Args:
        config: configuration of the resumed run.
        stored: configuration of the run so far.
        folder: folder of the run.
        progress: stage that the run has got to.

    Raises:
        InputError: if it changes one of them.
    """
    before = OmegaConf.create(dict(stored))
    remedy = f"init={folder.last_checkpoint} begins a new run with its weights"
    _check_finished_stages(config, before, progress.stage)
    stage, stage_before = (find_stage(whole, progress.stage).config for whole in (config, before))
    losses, losses_before = (dict(_list_targets(OmegaConf.to_container(part.loss))) for part in (stage, stage_before))
    if losses != losses_before:
        key = min(key for key in {*losses, *losses_before} if losses.get(key) != losses_before.get(key))
        old, new = (targets.get(key, "none") for targets in (losses_before, losses))
        raise InputError(f"resume: the run was trained with another loss, loss.{key}={old}, now {new}; {remedy}")
    if not folder.best_checkpoint.exists():
        return
    for key in CHOICE_KEYS:
        old, new = (OmegaConf.select(part, key) for part in (stage_before, stage))
        if old != new:
            raise InputError(f"{key}={new}: the run has chosen its best checkpoint with {old} so far; {remedy}")
    if "test" in {stage.evaluation.selection, stage_before.evaluation.selection} and (
        stage.evaluation.selection != stage_before.evaluation.selection
    ):
        raise InputError(
            f"evaluation.selection={stage.evaluation.selection}: the run has chosen its best checkpoint with "
            f"{stage_before.evaluation.selection} so far; {remedy}"
        )


def _check_finished_stages(config: DictConfig, before: DictConfig, current: str) -> None:
    """Make sure that the changes of the stages before the current one are those that they were trained with."""
    for stage in list_stages(before):
        if stage.name == current:
            return
        old, new = (OmegaConf.to_container(whole.stages).get(stage.name) for whole in (before, config))  # type: ignore[union-attr]
        if old != new:
            raise InputError(
                f"stages.{stage.name}: the run has finished this stage; a new run is needed for other values"
            )


def _list_targets(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, class) of each object that a part of a configuration builds."""
    entries = part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        if key == "_target_":
            yield f"{path}{key}", str(value)
        else:
            yield from _list_targets(value, f"{path}{key}.")
