"""The job of ``evaluate.py``: test a checkpoint again."""

import os
from collections import ChainMap
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import seed_everything
from pytorch_lightning.utilities import rank_zero_only

from dml.data.overview import summarize_data
from dml.data.splits import describe_splits
from dml.data.table import TEST_SPLITS, ImageTable
from dml.run import builders, loop
from dml.run.checks import check_tested_settings
from dml.run.config_folders import pretrained_name
from dml.run.final_test import run_test
from dml.run.settings import EvaluateSettings, read_settings
from dml.run.stored import (
    Stage,
    StoredRun,
    extract_run,
    find_stage,
    list_stages,
    plain_config,
    write_configuration,
)
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import console, in_markup
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint


def evaluate(config: DictConfig, folder: RunFolder, overrides: list[str]) -> dict[str, Any]:
    """Test a checkpoint again -> the contents of metrics.json.

    ``checkpoint=pretrained:NAME`` tests the features of a pretrained network, as `dml.pretrained` gives them.

    It takes neither a loss nor a sampler. It takes the pretrained weights that the training began with only if the
    checkpoint lacks those that an adapter left as they were.
    """
    settings = read_settings(config, EvaluateSettings)
    path = expand_home(settings.checkpoint)
    if folder.has_configuration and not folder.is_evaluation:
        raise InputError(
            f"hydra.run.dir={folder.path}: holds a run; choose another folder for the test of a checkpoint"
        )
    stored, description = None, dict[str, Any]()
    if pretrained_name(path) is not None:
        builders.use_pooled_features(config)
        stage = Stage("", config).for_test(lacks_weights=True)
    else:
        checkpoint = read_checkpoint(path, lazily=True)
        stored, progress = extract_run(checkpoint), TrainingProgress.from_checkpoint(checkpoint)
        description |= progress.describe()
        is_slim = lacks_weights(checkpoint)
        del checkpoint
        _take_other_data_whole(settings, path, overrides, stored)  # it changes the configuration
        stage = find_stage(list_stages(config), progress.stage).for_test(lacks_weights=is_slim)
        chosen_by = {"last": "last", "best": "test" if stored.config["evaluation"]["selection"] == "test" else "val"}
        if path.suffix == ".ckpt" and path.stem in chosen_by:
            description["selection"] = stage.config.evaluation.selection = chosen_by[path.stem]
    settings = read_settings(stage.config, EvaluateSettings)
    seed_everything(settings.seed, verbose=False)
    table = builders.build_table(settings, needs_fold=settings.split in ("train", "val"))
    check_tested_settings(settings, table)
    split = settings.split or builders.choose_tested_split(settings, table)
    if not len(table.select_evaluated(split)):
        raise InputError(f"split={split}: the data set has no image of it; it has {', '.join(table.counts())}")
    if stored is not None and stored.config["dataset"] == plain_config(config)["dataset"]:
        _check_data(settings, path, split, table)
    tested = table.select_evaluated(split)
    share = ", all that there are" if len(tested) == len(table) else ""
    line = f"{settings.dataset.name}: {describe_splits(tested)}{share}"
    rank_zero_only(console.print)(f"[bold]data[/]     {in_markup(line)}")
    images = loop.build_evaluation_data(settings, table)
    model = builders.build_model(settings)
    if stored is not None:
        load_model(model, path)
    run = folder if stored is None else RunFolder.from_checkpoint(path)
    rank_zero_only(write_configuration)(folder, config, overrides, began_in=run)
    trainer = loop.build_testing_trainer(settings, default_root_dir=folder.path)
    return run_test(
        stage,
        trainer,
        loop.build_embedder(settings, model),
        images,
        folder,
        split=split,
        description=description,
        run=run,
    )


def _check_data(settings: EvaluateSettings, path: Path, split: str, table: ImageTable) -> None:
    """Make sure that the data of a run hasn't changed when a checkpoint is tested on it."""
    before: Any = RunFolder.from_checkpoint(path).splits()
    if before is None or settings.accept_changed_data:
        return
    after: Any = summarize_data(table, settings.dataset.root)
    if split == "test" and settings.dataset.folds:  # too few training classes may be there to be divided as before
        used = {*TEST_SPLITS, "val"} if "val" in after else {*TEST_SPLITS}
        before, after = ({name: part[name] for name in used & part.keys()} for part in (before, after))
    builders.check_same_data(f"checkpoint={path}", before, after)


def _take_other_data_whole(settings: EvaluateSettings, path: Path, overrides: list[str], stored: StoredRun) -> None:
    """Let a test of other data than the run's be of all classes that are in no split, as none is trained.

    The command line may say otherwise.
    """
    reader = settings.dataset.reader
    new_keys = {key_of(override) for override in overrides if override not in stored.overrides}
    names_split = settings.split in ("train", "val") or settings.evaluation.split == "val"
    is_asked = names_split or "dataset.reader.test_fraction" in new_keys
    draws_classes = {"test_fraction", "val_fraction"} <= (reader or {}).keys()
    if draws_classes and not is_asked and not _is_of_run(settings, path, stored):
        reader.test_fraction = None


def _is_of_run(settings: EvaluateSettings, path: Path, stored: StoredRun) -> bool:
    """Tell whether data is the run's, also if it was moved: its former place is empty then."""
    then, now = stored.config["dataset"], settings.dataset
    root, new_root = (root and os.path.realpath(expand_home(root)) for root in (then["root"], now.root))
    if (then["name"], root) == (now.name, new_root):
        return True
    before = RunFolder.from_checkpoint(path).splits()
    if before is None or root is None or os.path.exists(root):
        return False
    after = summarize_data(builders.build_table(settings, needs_fold=False), now.root)
    return ChainMap(*before.values()) == ChainMap(*after.values())
