import sys
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from dml.ops.errors import InputError
from dml.run import build
from dml.run.cli import CONF

LABELS = np.array([[0, 1], [1, 0], [2, 1], [1, 0]])


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (400, 100)),
        (["trainer.max_epochs=3"], (120, 100)),
        (["trainer.max_epochs=3", "trainer.accumulate_grad_batches=7"], (18, 100)),
        (["trainer.check_val_every_n_epoch=2"], (400, 80)),
        (["trainer.val_check_interval=null"], (400, None)),
    ],
)
def test_epochs_are_the_samplers(overrides: list[str], expected: tuple[int, Any]) -> None:
    config = composed(*overrides)
    build.count_in_steps(config, batches_per_epoch=40)
    assert (config.trainer.max_steps, config.trainer.val_check_interval) == expected


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
    build.count_in_steps(config, batches_per_epoch=40)
    schedule = build.schedule(config, build.pace(config, batches_per_epoch=40))
    assert schedule is not None
    assert schedule.T_max == expected


def test_a_warm_up_that_leaves_nothing_for_the_schedule_is_refused() -> None:
    config = composed("scheduler=cosine", "scheduler.warmup_steps=400")
    with pytest.raises(InputError, match=r"scheduler.warmup_steps=400: leaves nothing of the run's 400 steps"):
        build.schedule(config, build.pace(config, batches_per_epoch=40))


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
    build.count_in_steps(config, batches_per_epoch=40)
    line = build.late_milestones(config, batches_per_epoch=40)
    assert line.endswith(expected)
    assert bool(line) == bool(expected)


def test_without_validation_there_is_none() -> None:
    config = composed("trainer.val_check_interval=null", "trainer.accelerator=cpu")
    build.count_in_steps(config, batches_per_epoch=40)
    assert build.trainer(config, logger=False, enable_checkpointing=False).limit_val_batches == 0


def test_each_head_has_a_loss_of_its_own() -> None:
    built = build.losses(composed(), {"L": 4, "H": 8}, LABELS)
    assert built.keys() == {"L", "H"}
    assert built["L"] is not built["H"]


def test_a_loss_knows_the_number_of_classes_and_their_hierarchy() -> None:
    assert build.losses(composed("loss=cluster"), {"H": 8}, LABELS)["H"].proxies.shape == (3, 8)
    csl: Any = build.losses(composed("loss=csl"), {"H": 8}, LABELS)["H"]
    assert csl.hierarchy.tolist() == [[0, 1], [1, 0], [2, 1]]


def test_a_logger_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("pytorch_lightning.loggers.wandb._WANDB_AVAILABLE", False, raising=True)
    config = composed("logger=wandb", "logger.loggers.wandb.save_dir=/tmp")
    with pytest.raises(InputError, match=r"logger=wandb: not installed; pip install 'dml\[wandb\]'"):
        build.loggers(config)
