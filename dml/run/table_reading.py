"""The reading of a data set's table, and whether it is the one that a run began with."""

from typing import Any

from omegaconf import DictConfig

from dml.data.image_files.limits import limit_list_bytes
from dml.data.split_overview import SplitSummary, describe_changes, summarize_data
from dml.data.table import TEST_SPLITS, ImageTable, hold_out_classes, list_training_classes, load
from dml.run.building import build
from dml.run.settings import DatasetSettings
from dml.run.stored import StoredRun, plain_config
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder

ADVICE = "accept_changed_data=true goes on with the data as it is now"


def read_table(dataset: DatasetSettings, max_list_bytes: int, *, needs_fold: bool = True) -> ImageTable:
    """Read and check a data set, and make the fold of the configuration the validation split.

    Args:
        dataset: settings of the data set.
        max_list_bytes: largest size of a file that lists images.
        needs_fold: whether fewer training classes than folds are an error; a test does without a validation split.

    Raises:
        InputError: if the data set has a fault.
    """
    with limit_list_bytes(max_list_bytes):
        images = load(
            build(dataset.reader),
            dataset.root,
            name=dataset.name,
            counts=dataset.counts,
            disjoint=dataset.disjoint,
            verify=dataset.verify,
        )
        if dataset.folds is not None and (needs_fold or len(list_training_classes(images)) >= dataset.folds):
            images = hold_out_classes(images, folds=dataset.folds, fold=dataset.fold)
        return images


def check_resumed_data(config: DictConfig, data: SplitSummary, folder: RunFolder) -> None:
    """Make sure that a run which is resumed has the data that it began with; its root may be another.

    Args:
        config: configuration of the run.
        data: the data as it is now, see `dml.data.split_overview.summarize_data`.
        folder: folder of the run.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` says so.
    """
    before = folder.splits()
    if before is not None and not config.accept_changed_data:
        _refuse_changes(f"resume={folder.path}", before, data)


def check_tested_data(config: DictConfig, split: str, table: ImageTable, stored: StoredRun) -> None:
    """Make sure that a checkpoint is tested on the data of its run, unless the command line names other data.

    Args:
        config: configuration of the evaluation.
        split: split that is tested.
        table: the data set as it is now.
        stored: what the run of the checkpoint stored.

    Raises:
        InputError: if the data has changed, unless ``accept_changed_data`` says so.
    """
    path = expand_home(config.checkpoint)
    before: Any = RunFolder.from_checkpoint(path).splits()
    if before is None or config.accept_changed_data or stored.config["dataset"] != plain_config(config)["dataset"]:
        return
    after: Any = summarize_data(table, config.dataset.root)
    if split == "test" and config.dataset.folds:  # too few training classes may be there to be divided as before
        used = {*TEST_SPLITS, "val"} if "val" in after else {*TEST_SPLITS}
        before, after = ({name: part[name] for name in used & part.keys()} for part in (before, after))
    _refuse_changes(f"checkpoint={path}", before, after)


def _refuse_changes(option: str, before: SplitSummary, after: SplitSummary) -> None:
    if changes := describe_changes(before, after):
        raise InputError(f"{option}: the data has changed since the run began: {'; '.join(changes)}; {ADVICE}")
