"""What ``conf/callbacks`` builds, in which order, and how a user adds to it and leaves out of it."""

from typing import Any

import pytest
from configurations import settings_of
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import Timer
from test_builders import composed

from dml.run.loop import build_callbacks
from dml.run.stages import list_stages
from dml.runtime.errors import InputError
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates
from dml.training.callbacks.loss_schedule import LossSchedule

DEFAULT = [
    "StepSeed",
    "PrincipalHeads",
    "EmbeddingBankUpdates",
    "ProxiesAtClassMeans",
    "FirstValidation",
    "FirstCheckpoint",
    "FinalValidation",
    "ProgressLines",
    "BestCheckpoint",
    "LastCheckpoint",
]
ALL_OPTIONS = [
    "training.ema=0.9",
    "training.proxies=class_means",
    "training.bank_every_n_steps=7",
    "checkpoints.every_n_steps=11",
    "checkpoints.monitor=h_ap",
    "scheduler.loss={attribute: temperature, start: 1, end: 2}",
]


def names(*overrides: str) -> list[str]:
    return [type(callback).__name__ for callback in build_callbacks(settings_of(composed(*overrides)))]


def built(kind: type[Callback], *overrides: str) -> Any:
    (callback,) = (
        callback for callback in build_callbacks(settings_of(composed(*overrides))) if isinstance(callback, kind)
    )
    return callback


def test_options_that_are_off_build_nothing() -> None:
    assert names() == DEFAULT


def test_all_options_are_built_in_order() -> None:
    moving = ["LossSchedule", "PrincipalHeads", "EmbeddingBankUpdates", "ProxiesAtClassMeans", "Averaging"]
    assert names(*ALL_OPTIONS) == [
        "StepSeed",
        *moving,
        "FirstValidation",
        "FirstCheckpoint",
        "FinalValidation",
        "ProgressLines",
        "BestCheckpoint",
        "LastCheckpoint",
    ]


def test_the_keys_of_the_options_reach_the_callbacks() -> None:
    built_callbacks = build_callbacks(settings_of(composed(*ALL_OPTIONS, "seed=5")))
    seeding, schedule, _, stored, _, averaging, _, _, _, _, best, last = (
        vars(callback) for callback in built_callbacks
    )
    assert seeding["seed"] == 5
    assert (schedule["attribute"], schedule["start"], schedule["end"]) == ("temperature", 1, 2)
    assert stored["every_n_steps"] == 7
    assert averaging["decay"] == 0.9
    assert (best["metric"], best["mode"], last["every_n_steps"]) == ("h_ap", "max", 11)
    assert last["every_n_seconds"] == 300


def test_an_entry_can_be_left_out_or_changed() -> None:
    assert names("callbacks.best_checkpoint=null", "callbacks.progress=null") == [
        name for name in DEFAULT if name not in ("BestCheckpoint", "ProgressLines")
    ]
    assert names("training.ema=0.9", "callbacks.averaging=null") == DEFAULT
    assert built(EmbeddingBankUpdates, "callbacks.embedding_bank.every_n_steps=3").every_n_steps == 3


def test_a_users_entry_comes_after_the_others() -> None:
    timer = "+callbacks.mine={_target_: pytorch_lightning.callbacks.Timer, duration: {hours: 1}}"
    assert names(timer) == [*DEFAULT, "Timer"]
    assert built(Timer, timer)._duration == 3600


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("callbacks.last_checkpoint=null", "callbacks.last_checkpoint=null: a run needs its last checkpoint; "),
        ("callbacks.averaging=0.9", "callbacks.averaging: 0.9 is not a callback; a mapping is due"),
        ("+callbacks.mine={_target_: dml.losses.rll.RankedListLoss}", "callbacks.mine: RankedListLoss() is not a"),
    ],
)
@pytest.mark.usefixtures("own_code")
def test_what_is_no_callback_is_refused(override: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        build_callbacks(settings_of(composed(override)))
    assert str(refused.value).startswith(line)


def test_each_stage_has_its_own_options() -> None:
    first, second = list_stages(
        composed("+stages={first: {training: {ema: 0.5}}, second: {scheduler: {loss: null}}}", *ALL_OPTIONS[1:])
    )
    assert [Averaging in map(type, build_callbacks(stage.settings)) for stage in (first, second)] == [True, False]
    assert [LossSchedule in map(type, build_callbacks(stage.settings)) for stage in (first, second)] == [True, False]
