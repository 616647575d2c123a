"""The check that the data of a run is as it was when the run began."""

import os
from typing import Any

from omegaconf import DictConfig

from dml.data.split_changes import SplitSummary, describe_changes, summarize_splits
from dml.data.table import TEST_SPLITS, ImageTable
from dml.ops.errors import InputError
from dml.ops.paths import expand_home
from dml.ops.run_folder import RunFolder
from dml.run.stored_configuration import StoredConfiguration, plain_config

ADVICE = "accept_changed_data=true goes on with the data as it is now"


def summarize_data(config: DictConfig, table: ImageTable) -> dict[str, dict[str, str]]:
    """Return the classes and the checksums of a run's images by split; a data set that was moved has the same.

    Args:
        config: configuration of the run, of which ``dataset.root`` counts.
        table: the data set.
    """
    return summarize_splits(table, _find_base_folder(config.dataset.root, table))


def _find_base_folder(root: str | None, table: ImageTable) -> str | None:
    """Return the folder, or the archive, that the paths of a table are below; None if it can't be known."""
    base = str(expand_home(root)) if root else table.source
    if os.path.isfile(base) and not base.endswith(".zip"):  # a list of images, such as a .csv file
        return os.path.dirname(base) or "."
    return base if os.path.exists(base) else None


def check_resumed_data(
    config: DictConfig, table_summary: SplitSummary, folder: RunFolder, stored: StoredConfiguration
) -> None:
    """Make sure that a run which is resumed has the data that it began with; its root may be another.

    Args:
        config: configuration of the run.
        table_summary: the data as it is now, see `summarize_data`.
        folder: folder of the run.
        stored: configuration with which the run was started before.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` or the new options of the data set say so.
    """
    before = folder.splits()
    then, now = stored.config.get("dataset") or {}, plain_config(config)["dataset"]
    if before is None or config.accept_changed_data or then | {"root": None} != now | {"root": None}:
        return
    _refuse_changes(f"resume={folder.path}", before, table_summary)


def check_tested_data(
    config: DictConfig, stage_config: DictConfig, table: ImageTable, stored: StoredConfiguration
) -> None:
    """Make sure that a checkpoint is tested on the data of its run, unless the command line names other data.

    Args:
        config: configuration of the evaluation.
        stage_config: configuration that the table was built with.
        table: the data set as it is now.
        stored: configuration of the run, as its checkpoint has it.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` says so.
    """
    path = expand_home(config.checkpoint)
    before: Any = RunFolder(path.absolute().parents[1]).splits()
    if before is None or config.accept_changed_data or stored.config.get("dataset") != plain_config(config)["dataset"]:
        return
    after: Any = summarize_data(stage_config, table)
    if stage_config.dataset.folds != config.dataset.folds:  # the training classes were not divided for this test
        before, after = ({split: part[split] for split in TEST_SPLITS if split in part} for part in (before, after))
    _refuse_changes(f"checkpoint={path}", before, after)


def _refuse_changes(option: str, before: SplitSummary, after: SplitSummary) -> None:
    if changes := describe_changes(before, after):
        raise InputError(f"{option}: the data has changed since the run began: {'; '.join(changes)}; {ADVICE}")
