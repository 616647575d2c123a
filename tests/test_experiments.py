"""Every experiment of conf/experiment composes, builds its own network, and trains on a slice of emoji.

An experiment of each structure trains two steps a stage, one of each paper with the smoke form's network; all others,
which `make test` leaves out, take one step. Networks of two convolutions take the place of those that others have.
"""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from configurations import settings_of
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from small_networks import TWO_CONVOLUTIONS

from dml.run import builders, jobs
from dml.run.config_folders import CONF
from dml.run.stored import plain_config
from dml.runtime.configuration import flat, is_below, key_of
from dml.runtime.imports import quiet
from dml.runtime.run_folder import RunFolder
from dml.studies.experiments import compose, shrink
from dml.studies.paper_tables import read_entries, read_tables
from dml.studies.study import Training

pytestmark = pytest.mark.pipeline

TINY = ("dataset.counts=null", "transform.size=32", "evaluation.clustering=false", "evaluation.threshold=null")

# tests/studies/test_tables.py misses the others
TABLES = [table for table in read_tables() if table.name in read_entries(table.paper)]


def first_trainings() -> dict[str, Training]:
    """The first training of each experiment, and of each group that a row of a table chooses in it.

    Of a loss that rows choose the first: tests/test_end_to_end.py trains them all.
    """
    found: dict[str, Training] = {}
    for table in TABLES:
        for training in table.trainings:
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


@cache
def composed(training: Training) -> DictConfig:
    """The whole configuration of an experiment, read-only; composing one takes a tenth of a second."""
    config = compose(training)
    OmegaConf.set_readonly(config, True)
    return config


def structure(training: Training) -> tuple[object, ...]:
    """What decides which parts of a run an experiment goes through; its loss does not, as losses have tests."""
    config = composed(training)
    return (
        config.sampler._target_,
        tuple(config.stages),
        len(config.model.heads) > 1,
        bool(config.scheduler.loss),
        bool(config.training.proxies),
    )


EXAMPLES = (
    "rll/I/rll_simpler",
    "rll/V/rll_simpler",
    "rll/XV/inshop",
    "lns/3.1/neighbors",
    "lns/4.1/iterations",
    "lns/4.2/unordered",
    "happier/1/baseline_sop",
    "happier/1/baseline_inat_base",
    "leaderboard/emoji",
    "lns/emoji/lns",
    "lns/emoji/rnn",
)
"""An experiment of each structure: the first one."""
QUICK = tuple(name for name in EXAMPLES if not name.startswith("lns/emoji/"))
"""Those that `make test` trains; tests/test_staged_runs.py trains in the stages of the others."""


@pytest.mark.thorough  # it composes all experiments
def test_each_structure_has_an_example() -> None:
    structures = {structure(training): name for name, training in reversed(TRAININGS.items())}
    assert set(structures.values()) == set(EXAMPLES)


CHOSEN = {TRAININGS[name] for name in EXAMPLES}
WITH_THEIR_NETWORK = {TRAININGS[name] for name in ("rll/I/rll_simpler", "lns/3.1/neighbors", "happier/1/baseline_sop")}


def tiny(training: Training, data: Path, steps: int) -> Training:
    """Return the smoke form with some steps a stage, and with a few of the slice's classes."""
    small = shrink(training)
    overrides = [*small.overrides, f"dataset.root={data}", *TINY]
    if training not in WITH_THEIR_NETWORK:
        overrides += TWO_CONVOLUTIONS
    lengths = [f"{key_of(own)}={steps}" for own in small.overrides if key_of(own).endswith("trainer.max_steps")]
    batches = [f"{key_of(own)}=6" for own in small.overrides if key_of(own).endswith("classes_per_batch")]
    return replace(small, overrides=(*overrides, *lengths, *batches))


KEPT = ("loss", "optimizer", "scheduler.schedule", "scheduler.loss", "model.heads", "sampler._target_", "recurrent")
"""What the small form of an experiment has in common with it."""


@pytest.mark.usefixtures("own_code")  # the small networks of the tests
@pytest.mark.parametrize(
    "training",
    [
        pytest.param(training, id=name, marks=() if name in QUICK else pytest.mark.thorough)
        for name, training in TRAININGS.items()
    ],
)
def test_an_experiment_trains(training: Training, small_emoji: Path, tmp_path: Path) -> None:
    quiet()
    steps = 2 if training in CHOSEN else 1
    asked = tiny(training, small_emoji, steps)
    config = compose(asked)
    of_levels = [own for own in asked.overrides if key_of(own).endswith((".level", "loss.margins"))]
    whole = composed(replace(training, overrides=(*training.overrides, *of_levels)))  # but for those emoji lacks
    # "${trainer.max_steps}" stays the same
    small, large = (flat(plain_config(config_of)) for config_of in (config, whole))
    for key in small.keys() | large.keys():
        if is_below(key, KEPT):
            assert small.get(key) == large.get(key), key
    stages = len(config.stages) or 1
    found = jobs.train(config, RunFolder(tmp_path), list(asked.overrides))
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == steps * stages
    wanted = {
        cell.find_metric(number.metric_name)
        for table in TABLES
        for number in table.trained
        for cell in table.find_cells(number.row, number.dataset)
        if training == cell.training
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
        config = composed(training)
        own = OmegaConf.create({"model": config.model, "recurrent": config.recurrent, "transform": config.transform})
        OmegaConf.set_readonly(own, False)
        own.model.embed_dim = 8
        own.model.backbone.weights = None
        found[json.dumps(OmegaConf.to_container(own), sort_keys=True)] = own
    return found


@pytest.mark.thorough
def test_experiments_build_their_own_networks_and_transforms() -> None:
    for own in networks().values():
        built = builders.build_model(settings_of(own))
        assert list(built.embed_dims) == list(own.model.heads)
        instantiate(own.transform.train)
        instantiate(own.transform.test)
