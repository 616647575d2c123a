"""The check that the data of a run is as it was when the run began."""

from typing import Any

from omegaconf import DictConfig

from dml.data.split_overview import SplitSummary, describe_changes, summarize_data
from dml.data.table import TEST_SPLITS, ImageTable
from dml.run.resuming.stored_configuration import StoredConfiguration, plain_config, without_unset
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder

ADVICE = "accept_changed_data=true goes on with the data as it is now"


def check_resumed_data(
    config: DictConfig, table_summary: SplitSummary, folder: RunFolder, stored: StoredConfiguration
) -> None:
    """Make sure that a run which is resumed has the data that it began with; its root may be another.

    Corrections and class splits count by what they change, wherever their file is.

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
    by_content = {"root": None, "corrections": None, "class_splits": None}
    if before is None or config.accept_changed_data or then | by_content != now | by_content:
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
