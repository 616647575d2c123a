"""Every experiment of conf/experiment composes, builds its own network, and trains two steps on a slice of emoji."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from dml.ops.nested import flat, is_below
from dml.ops.run_folder import RunFolder
from dml.run import build, jobs
from dml.run.cli import CONF
from dml.run.experiments import compose, smoke
from dml.run.quiet import quiet
from dml.run.stored import as_stored, key_of
from dml.run.tables import Training, index, tables

TINY = ("dataset.counts=null", "transform.size=32", "evaluation.clustering=false")

TABLES = [table for table in tables() if table.name in index(table.paper)]  # tests/run/test_tables.py misses the others


def first_trainings() -> dict[str, Training]:
    """The first training of each experiment, and of each group that a row of a table chooses in it.

    Of a loss that rows choose the first: tests/test_end_to_end.py trains them all.
    """
    found: dict[str, Training] = {}
    for table in TABLES:
        for training in table.trainings():
            groups = [override for override in training.overrides if "." not in key_of(override)]
            choices = [override for override in groups if key_of(override) != "loss"]
            found.setdefault(" ".join([training.experiment, *choices]), training)
    of_tables = {training.experiment for training in found.values()}
    folder = CONF / "experiment"
    for path in sorted(folder.rglob("*.yaml")):
        name = str(path.relative_to(folder).with_suffix(""))
        if name not in of_tables and "settings" not in path.parts:  # those are parts of experiments
            found[name] = Training(name)
    return found


TRAININGS = first_trainings()


def tiny(training: Training, data: Path) -> Training:
    """Two steps a stage, with a few of the slice's classes."""
    small = smoke(training)
    lengths = [f"{key_of(own)}=2" for own in small.overrides if key_of(own).endswith("trainer.max_steps")]
    batches = [f"{key_of(own)}=6" for own in small.overrides if key_of(own).endswith("classes_per_batch")]
    return replace(small, overrides=(*small.overrides, f"dataset.root={data}", *TINY, *lengths, *batches))


KEPT = ("loss", "optimizer", "scheduler.schedule", "scheduler.loss", "model.heads", "sampler._target_", "recurrent")
"""What the small form of an experiment has in common with it."""


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_an_experiment_trains_two_steps(training: Training, small_emoji: Path, tmp_path: Path) -> None:
    quiet()
    asked = tiny(training, small_emoji)
    config = compose(asked)
    of_levels = [own for own in asked.overrides if key_of(own).endswith((".level", "loss.margins"))]
    whole = compose(replace(training, overrides=(*training.overrides, *of_levels)))  # but for those emoji lacks
    small, large = (flat(as_stored(composed)) for composed in (config, whole))  # "${trainer.max_steps}" stays the same
    for key in small.keys() | large.keys():
        if is_below(key, KEPT):
            assert small.get(key) == large.get(key), key
    stages = len(config.stages) or 1
    found = jobs.train(config, RunFolder(tmp_path), list(asked.overrides))
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == 2 * stages
    wanted = {
        source.key(cell)
        for table in TABLES
        for cell in table.cells
        if training in (source := table.source(cell.row, cell.dataset)).trainings
    }
    assert {key for key in wanted if _of_emoji(key)} <= found.keys()
    shutil.rmtree(tmp_path / "checkpoints")  # of all experiments together gigabytes


def _of_emoji(key: str) -> bool:
    """Whether emoji, of three levels and one benchmark, can have it; the test has no clusters."""
    metric = key.rpartition("/")[2]
    elsewhere = ("mean/", "inat_full/", *(f"level{level}/" for level in range(3, 7)))
    return metric not in ("nmi", "f1") and not any(part in key for part in elsewhere)


def networks() -> dict[str, DictConfig]:
    """Each network and transform that an experiment has on its own data, whatever the size of its embedding."""
    found = {}
    for training in TRAININGS.values():
        config = compose(training)
        own = OmegaConf.create({"model": config.model, "recurrent": config.recurrent, "transform": config.transform})
        own.model.embed_dim = 8
        own.model.backbone.weights = None
        found[json.dumps(OmegaConf.to_container(own), sort_keys=True)] = own
    return found


def test_experiments_build_their_own_networks_and_transforms() -> None:
    for own in networks().values():
        built = build.model(own)
        assert list(built.embed_dims) == list(own.model.heads)
        instantiate(own.transform.train)
        instantiate(own.transform.test)
