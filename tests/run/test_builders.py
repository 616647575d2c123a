import re
import sys
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import compose as composed
from configurations import settings_of
from PIL import Image
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ProgressBar, Timer
from pytorch_lightning.profilers import SimpleProfiler
from trees import dyml_vehicle

from dml.data.overview import count_queries_in_gallery
from dml.data.table import ImageTable
from dml.evaluation import Evaluator, evaluate
from dml.run import builders, loop
from dml.run.builders import build_metric_config
from dml.run.stored import Stage
from dml.runtime.errors import InputError
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.callbacks.process_state import Float32Precision, StepSeed
from dml.training.callbacks.progress import Progress, ProgressLines
from dml.training.module import MetricLearner
from dml.training.optimizers import SchedulePace
from dml.training.trainer_arguments import REFUSED_ARGUMENTS, describe_late_milestones

LABELS = np.array([[0, 1], [1, 0], [2, 1], [1, 0]])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 400),
        (["trainer.max_epochs=2"], 80),
        (["scheduler.warmup_steps=40"], 360),
        (["scheduler.interval=epoch"], 10),
        (["scheduler.interval=epoch", "trainer.max_steps=401"], 11),
        (["scheduler.interval=epoch", "trainer.max_epochs=2", "trainer.accumulate_grad_batches=3"], 2),
        (["scheduler.interval=epoch", "trainer.accumulate_grad_batches=3", "scheduler.warmup_steps=40"], 27),
        (["scheduler.schedule.T_max=100", "scheduler.warmup_steps=40"], 100),
    ],
)
def test_a_cosine_ends_with_the_run(overrides: list[str], expected: int) -> None:
    config = composed("scheduler=cosine", *overrides)
    loop.count_in_steps(Stage("", config), batches_per_epoch=40)
    schedule = loop.build_schedule(settings_of(config), loop.build_pace(settings_of(config), batches_per_epoch=40))
    assert schedule.keywords["T_max"] == expected


def test_a_warm_up_that_leaves_nothing_for_the_schedule_is_refused() -> None:
    config = composed("scheduler=cosine", "scheduler.warmup_steps=400")
    loop.count_in_steps(Stage("", config), batches_per_epoch=40)
    with pytest.raises(InputError, match=r"scheduler.warmup_steps=400: leaves nothing of the run's 400 steps"):
        loop.build_schedule(settings_of(config), loop.build_pace(settings_of(config), batches_per_epoch=40))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["scheduler=cosine"], ""),
        (["scheduler=constant"], ""),
        (["scheduler=step"], "scheduler.schedule.step_size=10000: the run ends before step 10000"),
        (["scheduler=step", "scheduler.schedule.step_size=399"], ""),
        (["scheduler=step", "scheduler.schedule.step_size=399", "scheduler.warmup_steps=1"], "before step 399"),
        (
            ["scheduler=multistep", "scheduler.schedule.milestones=[9,10]", "scheduler.interval=epoch"],
            "before epoch 10",
        ),
    ],
)
def test_a_step_of_the_schedule_beyond_the_runs_end_is_told(overrides: list[str], expected: str) -> None:
    config = composed(*overrides)
    loop.count_in_steps(Stage("", config), batches_per_epoch=40)
    line = describe_late_milestones(
        config.scheduler.schedule or {}, loop.build_pace(settings_of(config), 40), config.trainer.max_steps
    )
    assert line.endswith(expected)
    assert bool(line) == bool(expected)


def test_without_validation_there_is_none() -> None:
    config = composed("trainer.val_check_interval=null", "trainer.accelerator=cpu")
    loop.count_in_steps(Stage("", config), batches_per_epoch=40)
    assert loop.build_trainer(settings_of(config), logger=False, enable_checkpointing=False).limit_val_batches == 0


@pytest.fixture
def vehicle(tmp_path: Path) -> Path:
    """A miniature of DyML-Vehicle whose queries are in their galleries too, under other names."""
    dyml_vehicle.build(tmp_path)
    for level in ("fine", "middle", "coarse"):
        for split in ("query", "gallery"):
            for path in (tmp_path / f"bmk_{level}" / split).iterdir():
                path.write_bytes(f"{level} {split} {path.name}".encode())
    for level, query, item in (("fine", 0, 1), ("fine", 2, 2), ("middle", 0, 1), ("coarse", 0, 1)):
        content = (tmp_path / f"bmk_{level}" / "query" / f"{query}.jpg").read_bytes()
        (tmp_path / f"bmk_{level}" / "gallery" / f"{item}.jpg").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(("known", "warns"), [([], True), (["dataset.queries_in_gallery=false"], False)])
def test_copies_in_the_gallery_are_told(
    known: list[str], warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i, (split, class_name) in enumerate(product(("train", "query", "gallery"), ("a", "b"))):
        for number in range(2):
            path = tmp_path / split / class_name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            color = (40 * (i - 2 * (split == "gallery")), 90 * number, 0)  # those of the queries in the gallery
            Image.new("RGB", (8, 8), color).save(path)
    options = ["dataset.reader.val_fraction=0", "dataset.disjoint=false", *known]
    config = composed("dataset=folder", f"dataset.root={tmp_path}", *options)
    builders.check_readable(settings_of(config), builders.build_table(settings_of(config)))
    assert ("queries are in their gallery" in caplog.text) == warns


@pytest.mark.parametrize(
    ("exclude", "in_gallery", "without", "recall"),
    [
        (["evaluation.exclude=null"], 4, 1, 0.5),
        (["evaluation.exclude=null", "dataset.queries_in_gallery=false"], 0, 0, 1.0),
        (["evaluation.exclude=nearest"], 0, 2, 1.0),
        (["experiment=happier/2/happier_dyml_vehicle"], 4, 1, 0.5),
    ],
)
def test_dymls_queries_are_excluded_from_their_galleries(
    exclude: list[str], in_gallery: int, without: int, recall: float, vehicle: Path
) -> None:
    """Fine queries 100, 200 and 201, gallery 200, 100, 201, 202 and 100: its second and third items are queries.

    Without them no item is of class 201, and the nearest of the first query is of class 202. Without the nearest item
    of each query classes 200 and 201 have none, and the first query finds the other item of class 100.
    """
    config = composed("dataset=dyml_vehicle", f"dataset.root={vehicle}", "dataset.counts=null", *exclude)
    part = builders.build_table(settings_of(config)).select_evaluated("test")
    assert count_queries_in_gallery(part) == (in_gallery, 8)
    angles = torch.rand(len(part), generator=torch.Generator().manual_seed(0))
    fine = part.benchmark == 0
    nearest_of_100 = [0.3, 0.2] if "nearest" not in exclude[0] else [0.2, 0.3]
    angles[fine] = torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0, 2.0, nearest_of_100[1], nearest_of_100[0]])
    evaluator = Evaluator(part, build_metric_config(settings_of(config), part))
    found = evaluator(torch.stack([angles.cos(), angles.sin()], 1))
    assert found["level0/queries_without_positives"] == without
    assert found["level0/recall@1"] == recall


def test_happiers_experiments_on_dyml_exclude_nothing_but_copies(vehicle: Path) -> None:
    for item in vehicle.glob("bmk_*/gallery/*.jpg"):
        item.write_bytes(f"no copy, {item}".encode())
    config = composed("experiment=happier/2/happier_dyml_vehicle", f"dataset.root={vehicle}", "dataset.counts=null")
    part = builders.build_table(settings_of(config)).select_evaluated("test")
    embeddings = torch.randn(len(part), 4, generator=torch.Generator().manual_seed(0))
    found = Evaluator(part, build_metric_config(settings_of(config), part))(embeddings)
    queries, gallery = (part.rows(split)[part.benchmark[part.rows(split)] == 0] for split in ("query", "gallery"))
    fine = torch.from_numpy(part.labels[:, 0])
    whole = evaluate(embeddings[queries], fine[queries], embeddings[gallery], fine[gallery])
    assert found["level0/ap"] == pytest.approx(whole["level0/ap"])


def test_a_gallery_without_the_queries_keeps_its_nearest_items(vehicle: Path) -> None:
    overrides = ["dataset=dyml_vehicle", f"dataset.root={vehicle}", "dataset.counts=null", "evaluation.exclude=nearest"]
    table = builders.build_table(settings_of(composed(*overrides)))
    for part, of_another_set, expected in (
        ("test", [], True),
        ("test", ["~dataset.queries_in_gallery"], False),
        ("train", [], True),
    ):
        metrics = build_metric_config(settings_of(composed(*overrides, *of_another_set)), table.select_evaluated(part))
        assert metrics.exclude_nearest == expected


def built_trainer(*overrides: str, **settings: Any) -> Trainer:
    config = composed("trainer.accelerator=cpu", *overrides)
    loop.count_in_steps(Stage("", config), batches_per_epoch=40)
    return loop.build_trainer(settings_of(config), logger=False, enable_checkpointing=False, **settings)


def test_too_few_folds_are_refused(small_emoji: Path) -> None:
    for folds, needs_fold in product((0, 1, -3), (True, False)):
        config = composed(f"dataset.root={small_emoji}", "dataset.counts=null", f"dataset.folds={folds}")
        with pytest.raises(InputError, match=rf"^dataset\.folds={folds}, dataset\.fold=0: folds are 2 to "):
            builders.build_table(settings_of(config), needs_fold=needs_fold)


def test_every_argument_of_lightnings_trainer_is_a_key_or_refused() -> None:
    known = {str(key) for key in composed().trainer} - {"_target_"}
    assert known.isdisjoint(REFUSED_ARGUMENTS)
    assert known | REFUSED_ARGUMENTS.keys() == set(signature(Trainer).parameters)


def test_what_dml_sets_itself_is_refused_with_what_to_use_instead() -> None:
    for argument in REFUSED_ARGUMENTS:
        with pytest.raises(InputError, match=rf"^trainer\.{argument}: dml sets it itself; .{{20}}"):
            built_trainer(f"++trainer.{argument}=1")


def test_an_interval_of_no_steps_is_refused() -> None:
    with pytest.raises(InputError, match=r"^trainer\.log_every_n_steps=0: must be a finite number, 1 or more$"):
        built_trainer("trainer.log_every_n_steps=0")


@pytest.mark.usefixtures("own_code")
def test_arguments_reach_lightnings_trainer() -> None:
    trainer = built_trainer(
        "trainer.gradient_clip_val=2",
        "trainer.gradient_clip_algorithm=norm",
        "trainer.max_time={hours: 2}",
        "trainer.min_steps=3",
        "trainer.inference_mode=false",
        "trainer.limit_test_batches=5",
        "trainer.profiler=simple",
        "trainer.plugins=[{_target_: dml.training.callbacks.checkpoints.AtomicCheckpointIO}]",
    )
    assert (trainer.gradient_clip_val, trainer.gradient_clip_algorithm) == (2, "norm")
    assert (trainer.min_steps, trainer.max_steps, trainer.min_epochs) == (3, 400, 0)
    assert (trainer.limit_test_batches, trainer.limit_val_batches) == (5, 1.0)
    assert isinstance(trainer.profiler, SimpleProfiler)
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)
    assert any(isinstance(callback, Timer) for callback in trainer.callbacks)


@pytest.mark.parametrize("callbacks", [[StepSeed(0)], [StepSeed(0), Progress()]])
def test_a_trainer_has_the_callbacks_that_it_is_given_and_no_bar_beside_them(callbacks: list[Callback]) -> None:
    own = "trainer.callbacks=[{_target_: pytorch_lightning.callbacks.Timer, duration: {hours: 1}}]"
    trainer = built_trainer(own, callbacks=callbacks)
    kinds = {type(callback) for callback in trainer.callbacks}
    assert kinds >= {type(callback) for callback in callbacks} | {Float32Precision}
    assert Timer not in kinds  # the user's own are among those of a training
    assert any(issubclass(kind, ProgressBar) for kind in kinds) == (len(callbacks) == 2)


def test_a_loss_knows_the_number_of_classes_and_their_hierarchy() -> None:
    assert builders.build_losses(settings_of(composed("loss=cluster")), {"H": 8}, LABELS)["H"].proxies.shape == (3, 8)
    csl: Any = builders.build_losses(settings_of(composed("loss=csl")), {"H": 8}, LABELS)["H"]
    assert csl.hierarchy.tolist() == [[0, 1], [1, 0], [2, 1]]


def test_level_weights_are_of_the_tables_levels() -> None:
    table = ImageTable(np.array(["a", "b", "c", "d"]), LABELS, np.array(["test"] * 4), ("class", "super-class"))
    assert build_metric_config(settings_of(composed("evaluation.level_weights=[0.9,0.1]")), table).level_weights == [
        0.9,
        0.1,
    ]
    message = r"evaluation\.level_weights=\[1\.0\]: 1 weights for the 2 levels class, super-class"
    with pytest.raises(InputError, match=message):
        build_metric_config(settings_of(composed("evaluation.level_weights=[1.0]")), table)


@pytest.mark.usefixtures("own_code")
def test_a_logger_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = composed("logger=wandb", "logger.loggers.wandb.save_dir=/tmp")
    with pytest.raises(InputError, match=r"logger=wandb: not installed; pip install 'dml-retrieval\[wandb\]'"):
        loop.make_loggers(settings_of(config))


@pytest.mark.parametrize(("override", "is_shown"), [("null", True), ("true", True), ("false", False)])
def test_a_test_shows_how_far_it_is_and_has_no_callbacks_of_the_users(override: str, is_shown: bool) -> None:
    own = "trainer.callbacks=[{_target_: pytorch_lightning.callbacks.Timer}]"
    config = composed("trainer.accelerator=cpu", f"trainer.enable_progress_bar={override}", own)
    callbacks = loop.build_testing_trainer(settings_of(config)).callbacks
    assert any(isinstance(callback, ProgressLines) for callback in callbacks) == is_shown
    assert not any(isinstance(callback, Timer) for callback in callbacks)


LEVELS = np.array([[0, 0], [1, 0], [2, 1], [3, 1]])


def test_a_level_that_the_data_lacks_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^loss\.level=1: the data set's labels have levels 0 to 0$"):
        builders.build_losses(settings_of(composed("loss=rll_coarse")), {"H": 4}, LEVELS[:, :1])


def test_csl_of_a_coarser_level_knows_the_classes_of_that_level() -> None:
    config = composed("loss=csl")
    config.loss = {"_target_": "dml.losses.compose.AtLevel", "level": 1, "loss": config.loss}
    loss = builders.build_losses(settings_of(config), {"H": 4}, LEVELS)["H"]
    assert loss.loss.hierarchy.tolist() == [[0], [1]]
    assert loss(torch.eye(4), torch.from_numpy(LEVELS)).isfinite()


class OwnLoss(torch.nn.Module):
    """A loss of a user's, whose arguments have names that some losses of dml have, too."""

    def __init__(self, num_classes: int, level: Any, sizes: Any, inner: Any) -> None:
        super().__init__()
        self.num_classes, self.level, self.sizes, self.inner = num_classes, level, sizes, inner

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.usefixtures("own_code")
def test_arguments_of_a_loss_of_ones_own_may_have_any_name() -> None:
    level = "high"
    own = {"_target_": f"{__name__}.OwnLoss", "num_classes": "???", "level": level, "sizes": "any", "inner": {"a": 1}}
    config = composed()
    config.loss = own
    loss = builders.build_losses(settings_of(config), {"H": 4}, LEVELS)["H"]
    assert (loss.num_classes, loss.level, loss.sizes, loss.inner) == (4, level, "any", {"a": 1})
    config.loss = {"_target_": "dml.losses.AtLevel", "level": 1, "loss": own}
    assert builders.build_losses(settings_of(config), {"H": 4}, LEVELS)["H"].loss.num_classes == 2


class OwnSum(torch.nn.Module):
    """A loss of a user's that has a list of losses."""

    def __init__(self, losses: list[torch.nn.Module]) -> None:
        super().__init__()
        self.losses = torch.nn.ModuleList(losses)

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.usefixtures("own_code")
def test_losses_in_a_list_know_the_number_of_classes() -> None:
    cluster = {"_target_": "dml.losses.happier.ClusterLoss", "num_classes": "???", "embedding_dim": "???"}
    coarse = {"_target_": "dml.losses.AtLevel", "level": 1, "loss": cluster}
    config = composed()
    config.loss = {"_target_": f"{__name__}.OwnSum", "losses": [cluster, coarse]}
    fine, coarser = builders.build_losses(settings_of(config), {"H": 8}, LEVELS)["H"].losses
    assert (fine.proxies.shape, coarser.loss.proxies.shape) == ((4, 8), (2, 8))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["optimizer.lr=-1"], "optimizer.lr=-1: must be a finite number, 0 or more"),
        (["+optimizer.betas=[2,0]"], "optimizer: Invalid beta parameter at index 0: 2"),
        (["scheduler=step", "scheduler.schedule.step_size=0"], "scheduler.schedule: "),
    ],
)
def test_what_an_optimizer_or_a_schedule_refuses_is_told_before_a_training(overrides: list[str], line: str) -> None:
    settings = settings_of(composed(*overrides, "trainer.max_steps=9"))
    learner: Any = MetricLearner(
        builders.build_model(settings_of(composed("model=small_cnn", "transform.size=32"))),
        {},
        optimizer=builders.build(settings.optimizer),
        schedule=loop.build_schedule(settings, SchedulePace()),
        evaluate=lambda *_: {},
    )
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        loop.check_optimizer(learner)
