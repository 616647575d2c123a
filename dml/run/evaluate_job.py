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
from dml.run.evaluators import choose_tested_split
from dml.run.final_test import run_test
from dml.run.model_builders import count_features, use_features
from dml.run.settings import EvaluateSettings, Settings, read_settings
from dml.run.stages import Stage, find_stage, make_evaluation_config
from dml.run.stored import StoredRun, extract_run, plain_config, write_configuration
from dml.runtime.configuration import key_of
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import in_markup
from dml.training.checkpoints import TrainingProgress, lacks_weights, load_model, read_checkpoint


def evaluate(config: DictConfig, folder: RunFolder, overrides: list[str]) -> dict[str, Any]:
    """Test a checkpoint again -> the contents of metrics.json.

    ``checkpoint=pretrained:NAME`` tests the features of a pretrained network, as `dml.pretrained` gives them.

    It takes neither a loss nor a sampler. It takes the pretrained weights that the training began with only if the
    checkpoint lacks those that an adapter left as they were.
    """
    path = expand_home(read_settings(config, EvaluateSettings).checkpoint)
    if folder.has_configuration and not folder.is_evaluation:
        raise InputError(
            f"hydra.run.dir={folder.path}: holds a run; choose another folder for the test of a checkpoint"
        )
    if pretrained_name(path) is not None:
        stored, description = None, dict[str, Any]()
        use_features(config.model, count_features(config.model.backbone, config.transform.size))
        stage = Stage("", make_evaluation_config(config, lacks_weights=True))
    else:
        stage, stored, description = _read_stage(path, config, overrides)
    settings = read_settings(stage.config, EvaluateSettings)
    seed_everything(settings.seed, verbose=False)
    table = builders.build_table(settings, needs_fold=settings.split in ("train", "val"))
    check_tested_settings(settings, table)
    split = _choose_split(settings, table)
    if stored is not None:
        _check_data(config, split, table, stored)
    tested = table.select_evaluated(split)
    share = ", all that there are" if len(tested) == len(table) else ""
    line = f"{settings.dataset.name}: {describe_splits(tested)}{share}"
    rank_zero_only(console.print)(f"[bold]data[/]     {in_markup(line)}")
    images = builders.build_evaluation_data(settings, table)
    model = builders.build_model(settings)
    if stored is not None:
        load_model(model, path)
    run = folder if stored is None else RunFolder.from_checkpoint(path)
    rank_zero_only(write_configuration)(folder, config, overrides, began_in=run)
    trainer = loop.build_testing_trainer(settings, default_root_dir=folder.path)
    return run_test(
        stage,
        trainer,
        builders.build_embedder(settings, model),
        images,
        folder,
        split=split,
        description=description,
        run=run,
    )


def _read_stage(path: Path, config: DictConfig, overrides: list[str]) -> tuple[Stage, StoredRun, dict[str, Any]]:
    """Return the stage whose checkpoint is tested, what its run stored, and what describes it in metrics.json."""
    checkpoint = read_checkpoint(path, lazily=True)
    stored = extract_run(checkpoint)
    progress = TrainingProgress.from_checkpoint(checkpoint)
    description: dict[str, Any] = progress.describe(checkpoint["run"])
    is_slim = lacks_weights(checkpoint)
    del checkpoint
    _take_other_data_whole(config, overrides, stored)
    stage = Stage(
        progress.stage, make_evaluation_config(find_stage(config, progress.stage).config, lacks_weights=is_slim)
    )
    if selection := _find_selection(path, stored):
        description["selection"] = stage.config.evaluation.selection = selection
    return stage, stored, description


def _check_data(config: DictConfig, split: str, table: ImageTable, stored: StoredRun) -> None:
    """Make sure that a checkpoint is tested on the data of its run, unless the command line names other data."""
    path = expand_home(config.checkpoint)
    before: Any = RunFolder.from_checkpoint(path).splits()
    if before is None or config.accept_changed_data or stored.config["dataset"] != plain_config(config)["dataset"]:
        return
    after: Any = summarize_data(table, config.dataset.root)
    if split == "test" and config.dataset.folds:  # too few training classes may be there to be divided as before
        used = {*TEST_SPLITS, "val"} if "val" in after else {*TEST_SPLITS}
        before, after = ({name: part[name] for name in used & part.keys()} for part in (before, after))
    builders.check_same_data(f"checkpoint={path}", before, after)


def _take_other_data_whole(config: DictConfig, overrides: list[str], stored: StoredRun) -> None:
    """Let a test of other data than the run's be of all classes that are in no split, as none is trained.

    The command line may say otherwise. Data that was moved, so that its former place is empty, is the run's.
    """
    reader, then, now = config.dataset.reader, stored.config["dataset"], config.dataset
    new_keys = {key_of(override) for override in overrides if override not in stored.overrides}
    root, new_root = (root and os.path.realpath(expand_home(root)) for root in (then["root"], now.root))
    names_split = config.split in ("train", "val") or config.evaluation.get("split") == "val"
    is_own = (then["name"], root) == (now.name, new_root)
    draws_classes = {"test_fraction", "val_fraction"} <= (reader or {}).keys()
    if names_split or is_own or not draws_classes or "dataset.reader.test_fraction" in new_keys:
        return
    test_fraction, reader.test_fraction = reader.test_fraction, None
    before = RunFolder.from_checkpoint(expand_home(config.checkpoint)).splits()
    if before is not None and root is not None and not os.path.exists(root):
        after = summarize_data(builders.build_table(read_settings(config, Settings), needs_fold=False), now.root)
        if ChainMap(*before.values()) == ChainMap(*after.values()):
            reader.test_fraction = test_fraction


def _find_selection(path: Path, stored: StoredRun) -> str | None:
    """Return what chose a checkpoint, as ``evaluation.selection``, by the name of its file; None for another name."""
    run_folder = RunFolder.from_checkpoint(path)
    by_validation = "test" if stored.config["evaluation"]["selection"] == "test" else "val"
    return {run_folder.last_checkpoint.name: "last", run_folder.best_checkpoint.name: by_validation}.get(path.name)


def _choose_split(settings: EvaluateSettings, table: ImageTable) -> str:
    """Return the split to test: ``split``, or the one that the run tested at its end."""
    if settings.split is None:
        return choose_tested_split(settings, table)
    if not len(table.select_evaluated(settings.split)):
        raise InputError(f"split={settings.split}: the data set has no image of it; it has {', '.join(table.counts())}")
    return settings.split
